"""Corpora of recordings: MELD, DailyTalk, the bundled sample, and what `fetching` downloaded.

A function for each; its docstring is the corpus' card.
"""

from __future__ import annotations

import csv
import glob
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.common.errors import Skipped
from sdiareward.common.files import read_json_object
from sdiareward.common.package import SAMPLE
from sdiareward.pairs.schema import TAXONOMY, UNKNOWN

from ..episodes import Episode, Part, Recording, SkipError, Turn, make_reference, validate_episode
from .reading import decode_table_line, find_clip, read_json_lines, require_file


# Table and folder of clips by split.
_MELD_SPLITS = {
    "train": ("train_sent_emo.csv", "train_splits"),
    "dev": ("dev_sent_emo.csv", "dev_splits_complete"),
    "test": ("test_sent_emo.csv", "output_repeated_splits_test"),
}
MELD_COLUMNS = ("Utterance", "Speaker", "Emotion", "Sentiment", "Dialogue_ID", "Utterance_ID")
_MELD_CORRECTED = "final_videos_test"
_ACTS, _EMOTIONS = TAXONOMY["dailytalk"]
_SAMPLE_COLUMNS = ("name", "source", "subset", "group", "primary", "secondary", "language", "license")
FETCHED = "manifest.jsonl"
DEFAULT_LICENSE = "LicenseRef-YouTube"
# What a download leaves beside its file until it is complete, or writes about it.
_NO_MEDIA = {".part", ".ytdl", ".temp", ".json", ".jsonl", ".txt", ".vtt"}


def read_meld(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """MELD: acted English dialogue of a television series, with emotion and sentiment of every utterance (semi-wild).

    Origin: Poria et al., 2019, from the series Friends. Size: 1,433 dialogues of 13,708 utterances, 3.6 s each on
    average (the paper counts 21.67 hours of turns). Language: en. Licence: the annotations are GPL-3.0; the clips
    belong to the owners of the series, using them for research is the user's own responsibility.

    How to obtain: download `MELD.Raw.tar.gz` from https://affective-meld.github.io, unpack it and the three archives
    in it. Expected tree, as they unpack; a table and its folder may also be together in `train/`, `dev/`, `test/`:

        train_sent_emo.csv    train_splits/dia<D>_utt<U>.mp4
        dev_sent_emo.csv      dev_splits_complete/dia<D>_utt<U>.mp4
        test_sent_emo.csv     output_repeated_splits_test/dia<D>_utt<U>.mp4, final_videos_testdia<D>_utt<U>.mp4

    Where the test folder has both names of a clip, the one with the prefix is the corrected one and is taken. Columns:
    `Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID,Season,Episode,StartTime,EndTime`. The tables
    mix UTF-8 and Windows-1252 quotes; some numbers of `Utterance_ID` are missing.

    How it is read: words and labels are trusted, there is no VAD or ASR (section B.1). The paper enhances the clips,
    which have laughter and music; a build does where the source has `enhance: true`. Dialogues may have several
    speakers; `cut_dialogue` cuts them into stretches of two. Primary label is the sentiment, secondary the emotion, of
    the last utterance (Table 5). Groups are the dialogues; the speakers return in all of them. A turn longer than 60 s
    is left to the builder, which skips it: some clips are known to be cut wrongly.
    """
    tables = {split: _find_table(path, split) for split in _MELD_SPLITS} if path else {}
    if path is None or not any(tables.values()):
        raise FileNotFoundError(f"{path}: MELD not found; download MELD.Raw.tar.gz, unpack it, and give its folder.")
    for split, table in tables.items():
        if table is None:
            name = _MELD_SPLITS[split][0]
            yield Skipped(f"meld {split}", "missing_table", f"{name}: not found in {path} or {path / split}.")
            continue
        dialogues: dict[int, dict[int, Utterance]] = defaultdict(dict)
        # Lines are parsed one by one, so that a stray quote costs one row.
        lines = [decode_table_line(line) for line in table.read_bytes().splitlines()]
        header = _read_header(lines, table)
        for number, line in enumerate(lines[1:], start=2):
            try:
                if line.strip():
                    dialogue, utterance = _read_meld_line(line, header, path, split)
                    if utterance.number in dialogues[dialogue]:
                        reason = f"dialogue {dialogue} already has an utterance {utterance.number}; the first is kept."
                        raise SkipError("duplicate", reason)
                    dialogues[dialogue][utterance.number] = utterance
            except SkipError as error:
                yield Skipped(f"meld {table.name} line {number}", error.kind, str(error))
        fields = {"source": "meld", "subset": "semi_wild", "language": "en", "license": "LicenseRef-MELD"}
        for dialogue, found in sorted(dialogues.items()):
            utterances = [found[index] for index in sorted(found)]
            group, item = f"{split}/dia{dialogue}", f"meld {split} dialogue {dialogue}"
            yield from cut_dialogue(utterances, item, group=group, native_coding=("aac",), **fields)


def locate_meld(root: Path, path: str) -> Path:
    """Return a clip, whichever way the archives were unpacked."""
    split = next((split for split, (_, folder) in _MELD_SPLITS.items() if path.startswith(f"{folder}/")), "")
    return require_file(root / split if (root / split / path).is_file() else root, path)


def _find_table(root: Path, split: str) -> Path | None:
    name = _MELD_SPLITS[split][0]
    return next((path for path in (root / name, root / split / name) if path.is_file()), None)


def _read_header(lines: Sequence[str], table: Path) -> list[str]:
    try:
        header = next(csv.reader(lines[:1]), [])
    except csv.Error as error:
        raise ValueError(f"{table}: its first line is no header ({error}); take the published table.") from error
    if missing := [column for column in MELD_COLUMNS if column not in header]:
        raise ValueError(f"{table}: has the columns {header}, and lacks {missing}; take the published table.")
    return header


def _read_meld_line(line: str, header: list[str], root: Path, split: str) -> tuple[int, Utterance]:
    """Return the number of a dialogue and an utterance of it."""
    try:
        values = next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise SkipError("bad_row", f"{error}; the row is {line[:60]!r}.") from error
    if len(values) != len(header):
        raise SkipError("bad_row", f"has {len(values)} fields, the table {len(header)}.")
    row = dict(zip(header, values, strict=True))
    numbers = [row["Dialogue_ID"], row["Utterance_ID"]]
    if not all(map(_is_number, numbers)):
        found = " and ".join(map(repr, numbers))
        raise SkipError("bad_row", f"Dialogue_ID and Utterance_ID are {found}; numbers are needed.")
    dialogue, index = map(int, numbers)
    text, labels = row["Utterance"].strip(), (row["Sentiment"].capitalize(), row["Emotion"].capitalize())
    if not text:
        raise SkipError("missing_text", "Utterance is empty; an utterance needs its words.")
    for label, allowed in zip(labels, TAXONOMY["meld"], strict=True):
        if label not in allowed:
            raise SkipError("unknown_label", f"{label!r} is not in Table 5, which has {sorted(allowed)}.")
    # The archive of a split may have been unpacked in two places; the corrected clip comes first.
    published = _MELD_SPLITS[split][1]
    folder, name = (
        published if (root / published).is_dir() else f"{split}/{published}",
        f"dia{dialogue}_utt{index}.mp4",
    )
    corrected = f"{folder}/{_MELD_CORRECTED}{name}"
    clip = find_clip(root, corrected if (root / corrected).is_file() else f"{folder}/{name}")
    part = Part(text, str(clip), ref=make_reference("meld", f"{published}/{clip.name}"))
    return dialogue, Utterance(index, row["Speaker"].strip(), part, *labels)


def _is_number(key: str) -> bool:
    # Python refuses to convert numbers of thousands of digits.
    return key.isdecimal() and len(key) < 10


def read_dailytalk(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """DailyTalk: everyday dialogues, read by two speakers in a studio, with dialogue act and emotion (scripted).

    Origin: Lee et al., 2023: 2,541 dialogues of DailyDialog, adapted and recorded by one woman and one man. Size:
    23,773 utterances, about 20 hours (21.93 in the paper), 44.1 kHz. Language: en. Licence: CC-BY-SA-4.0, for academic
    use.

    How to obtain: download the archive that https://github.com/keonlee9420/DailyTalk links to, and unpack it.
    Expected tree:

        dailytalk/metadata.json          {dialogue: {utterance: {"text", "speaker", "emotion", "act", ...}}}
        dailytalk/data/<dialogue>/<utterance>_<speaker>_d<dialogue>.wav, and the same name in .txt

    How it is read: words and labels are trusted, there is no VAD or ASR (section B.1). The paper enhances the clips; a
    build does where the source has `enhance: true`. The speakers alternate; `cut_dialogue` cuts a dialogue of more
    than 16 turns into consecutive episodes, which share its group. Primary label is the dialogue act, secondary the
    emotion, of the last utterance (Table 5); an act that is missing is `Unknown`.
    """
    path = path or Path("dailytalk")
    metadata = read_json_object(path / "metadata.json", "download DailyTalk, unpack it, and give its folder")
    fields = {"source": "dailytalk", "subset": "scripted", "language": "en", "license": "CC-BY-SA-4.0"}
    yield from _list_bad(metadata, "dailytalk dialogue")
    for dialogue, entries in _sort_by_number(metadata):
        item = f"dailytalk dialogue {dialogue}"
        yield from _list_bad(entries, f"{item} utterance")
        utterances = []
        for index, entry in _sort_by_number(entries):
            try:
                utterances.append(_read_dailytalk_entry(path, dialogue, index, entry))
            except SkipError as error:
                yield Skipped(f"{item} utterance {index}", error.kind, str(error))
        yield from cut_dialogue(utterances, item, group=str(dialogue), **fields)


def _list_bad(entries: Mapping[str, Any], label: str) -> Iterator[Skipped]:
    for key, entry in entries.items():
        if not (_is_number(key) and isinstance(entry, dict)):
            yield Skipped(f"{label} {key}", "bad_entry", "a number as key and an object as value are needed.")


def _sort_by_number(entries: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    numbered = {int(key): entry for key, entry in entries.items() if _is_number(key) and isinstance(entry, dict)}
    return sorted(numbered.items(), key=lambda numbered_entry: numbered_entry[0])


def _read_dailytalk_entry(root: Path, dialogue: int, index: int, entry: Mapping[str, Any]) -> Utterance:
    text, speaker = entry.get("text"), entry.get("speaker")
    if not (isinstance(text, str) and text.strip()):
        raise SkipError("missing_text", f"text is {text!r}; an utterance needs its words.")
    primary = str(entry.get("act") or UNKNOWN).strip().capitalize()
    secondary = str(entry.get("emotion")).strip().title()
    if primary not in _ACTS or secondary not in _EMOTIONS:
        found = f"act is {entry.get('act')!r} and emotion {entry.get('emotion')!r}"
        raise SkipError("unknown_label", f"{found}; Table 5 has {sorted(_ACTS)} and {sorted(_EMOTIONS)}.")
    relative = f"data/{dialogue}/{index}_{speaker}_d{dialogue}.wav"
    part = Part(text.strip(), str(find_clip(root, relative)), ref=make_reference("dailytalk", relative))
    return Utterance(index, str(speaker), part, primary, secondary)


class Utterance(NamedTuple):
    """A line of a dialogue; a jump in `number` marks a missing utterance."""

    number: int
    speaker: str
    part: Part
    primary: str = UNKNOWN
    secondary: str = UNKNOWN


def cut_dialogue(utterances: Iterable[Utterance], item: str, group: str, **fields: Any) -> Iterator[Episode | Skipped]:
    """Cut a dialogue that comes as single utterances into episodes; yield a `Skipped` for every turn without one.

    Consecutive utterances of one speaker are one turn with several parts. An episode is the longest stretch of two
    alternating speakers: it ends before a third speaker, at a missing utterance (its neighbours do not answer each
    other), and after 16 turns. If the number of turns is odd, the last one begins the next stretch, or is skipped if
    none follows. The labels are those of the last utterance, which ends the turn that the paper judges (section B.1,
    phase 2).
    """
    # Along an unbroken run, number and position grow together.
    for _, run in groupby(enumerate(utterances), key=lambda pair: pair[1].number - pair[0]):
        turns = [list(of_turn) for _, of_turn in groupby((found for _, found in run), key=lambda found: found.speaker)]
        while turns:
            speakers = {turn[0].speaker for turn in turns[:2]}
            length = next((n for n, turn in enumerate(turns) if turn[0].speaker not in speakers), len(turns))
            length = min(length - length % 2, MAX_TURNS)
            taken, turns = turns[: length or 1], turns[length or 1 :]
            first, last = taken[0][0], taken[-1][-1]
            if not length:
                reason = f"{first.part.text!r} has no neighbour left to make an exchange with."
                yield Skipped(f"{item} utterance {first.number}", "no_answer", reason)
                continue
            yield Episode(
                name=f"{group}/{first.number}",
                group=group,
                turns=tuple(Turn(ROLES[n % 2], tuple(u.part for u in turn)) for n, turn in enumerate(taken)),
                primary=last.primary,
                secondary=last.secondary,
                **fields,
            )


def read_sample(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """The bundled sample: real recordings of a game and of telephone prompts, as OGG/Opus; needs no package.

    Origin, language and licences: `sample/README.md` has them and the notices. Expected tree:

        sample/manifest.jsonl                  one episode per line, each part with its words, start_s and end_s
        sample/amazon_queen/*.ogg              one file per episode, 16 kHz mono, the parts one after another
        sample/asterisk/*.ogg
    """
    manifest = (path or SAMPLE) / "manifest.jsonl"
    if not manifest.is_file():
        raise FileNotFoundError(
            f"{manifest}: not found; the sample is in the repository, give the path to its folder."
        )
    seen: set[tuple[str, str]] = set()

    def read(row: dict[str, Any], item: str) -> Iterator[Episode]:
        try:
            audio, ref = str(find_clip(manifest.parent, row["audio"])), make_reference("sample", row["audio"])
            turns = tuple(
                Turn(turn["role"], tuple(Part(p["text"], audio, p["start_s"], p["end_s"], ref) for p in turn["parts"]))
                for turn in row["turns"]
            )
            labels = {key: row[key] for key in _SAMPLE_COLUMNS}
            episode = Episode(turns=turns, native_coding=tuple(row["native_coding"]), **labels)
            validate_episode(episode)
        except (KeyError, TypeError) as error:
            raise SkipError("bad_row", f"a field is missing or of another kind: {error!r}.") from error
        except ValueError as error:
            raise SkipError("bad_row", str(error)) from error
        if (key := (episode.source, episode.name)) in seen:
            raise SkipError("duplicate", f"{' '.join(key)} was an earlier line; the first is kept.")
        seen.add(key)
        yield episode

    yield from read_json_lines(manifest, "sample", read)


def read_youtube(
    path: Path | None = None, *, language: str | None = None, license: str | None = None
) -> Iterator[Recording | Skipped]:
    """YouTube: interviews and podcasts, spontaneous speech from the web (wild).

    Origin: channels of your choice; the paper takes interviews and podcasts, 1,954.2 hours of raw audio (section B.1).
    Language: as you choose, English by default. Licence: the one each video is published under, else
    `LicenseRef-YouTube`: the standard licence forbids redistributing the audio, so none of it is ever part of a
    release.

    How to obtain: `fetching.fetch` downloads them with `yt-dlp`, for non-commercial research, if the law and the terms
    of the site allow it. Expected tree, as it writes it:

        <folder>/<video id>.<extension>
        <folder>/manifest.jsonl     id, extractor, url, file, duration_s, language, license; once a file is whole

    The manifest has no title, uploader or channel: they are not needed, and cannot be released by mistake. Of
    its fields only the id gets into a release, as part of a reference: `youtube:<video id>`, so that a copy in another
    format is found too. The pipeline cuts the recordings into episodes.
    """
    if path is None or not (path / FETCHED).is_file():
        raise FileNotFoundError(f"{path}: {FETCHED} not found; fetch recordings first, or give the folder of some.")
    replaced = {key: value for key, value in (("language", language), ("license", license)) if value}
    seen: set[str] = set()

    def read(line: dict[str, Any], item: str) -> Iterator[Recording]:
        row = line | replaced
        if bad := [key for key in ("file", "language", "license") if not (isinstance(row.get(key), str) and row[key])]:
            raise SkipError("missing_field", f"{bad} are absent or no text; fetch into this folder again.")
        clip = find_clip(path, row["file"])
        if clip.stem in seen:
            raise SkipError("duplicate", f"{clip.stem} was an earlier line; it is kept.")
        seen.add(clip.stem)
        ref = make_reference("youtube", clip.stem)
        yield Recording(clip.stem, str(clip), ref, "youtube", "wild", row["language"], row["license"])

    yield from read_json_lines(path / FETCHED, "youtube", read)


def locate_youtube(root: Path, path: str) -> Path:
    """Return the file of a video in any format."""
    if Path(path).name != path:
        raise ValueError(f"reference youtube:{path}: must read 'youtube:VIDEO_ID'.")
    # The extension has no dot, an id may: `a.b.webm` is the file of `a.b`, not of `a`.
    files = [file for file in sorted(root.glob(f"{glob.escape(path)}.*")) if file.is_file() and file.stem == path]
    files = [file for file in files if file.suffix not in _NO_MEDIA]
    if not files:
        raise FileNotFoundError(f"{root / path}.*: not found; fetch video {path} again.")
    return files[0]
