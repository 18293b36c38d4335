"""Corpora of recordings and scripts: MELD, DailyTalk, the bundled sample and scripts, and what `fetching` downloaded.

A function for each; its docstring is the corpus' card.
"""

from __future__ import annotations

import csv
import glob
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.common.errors import Skipped
from sdiareward.common.files import read_json_object
from sdiareward.common.package import SAMPLE, SCRIPTS
from sdiareward.pairs.schema import UNKNOWN

from ..episodes import Episode, Part, Recording, ScriptPair, SkipError, Turn, make_reference
from ..pairing.surface_counts import find_imbalance, require_balance
from .reading import find_clip, read_json_lines, require_file


# Table and folder of clips by split.
_MELD_SPLITS = {
    "train": ("train_sent_emo.csv", "train_splits"),
    "dev": ("dev_sent_emo.csv", "dev_splits_complete"),
    "test": ("test_sent_emo.csv", "output_repeated_splits_test"),
}
_MELD_COLUMNS = ("Utterance", "Speaker", "Emotion", "Sentiment", "Dialogue_ID", "Utterance_ID")
# Windows-1252 puts quotes and dashes where Unicode has control characters that no transcript means.
_WINDOWS_CHARACTERS = {
    code: bytes([code]).decode("cp1252") for code in range(0x80, 0xA0) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}
FETCHED = "manifest.jsonl"
DEFAULT_LICENSE = "LicenseRef-YouTube"
# What a download leaves beside its file until it is complete, or writes about it.
_NO_MEDIA = {".part", ".ytdl", ".temp", ".json", ".jsonl", ".txt", ".vtt"}


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
                yield Skipped(f"{item} utterance {first.number}", "no_answer", f"{first.part.text!r} has no answer.")
                continue
            parts = tuple(Turn(ROLES[n % 2], tuple(u.part for u in turn)) for n, turn in enumerate(taken))
            labels: dict[str, Any] = {"primary": last.primary, "secondary": last.secondary}
            yield Episode(name=f"{group}/{first.number}", group=group, turns=parts, **labels, **fields)


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
    path = path or Path("MELD.Raw")
    tables = {}
    for split, (name, _) in _MELD_SPLITS.items():
        tables[split] = next((place for place in (path / name, path / split / name) if place.is_file()), None)
    if not any(tables.values()):
        raise FileNotFoundError(f"{path}: MELD not found; download MELD.Raw.tar.gz, unpack it, and give its folder.")
    for split, table in tables.items():
        if table is None:
            reason = f"{_MELD_SPLITS[split][0]} is neither in {path} nor in {path / split}."
            yield Skipped(f"meld {split}", "missing_table", reason)
            continue
        dialogues: dict[int, dict[int, Utterance]] = defaultdict(dict)
        # Lines are parsed one by one, so that a stray quote costs one row.
        lines = [_decode_table_line(line) for line in table.read_bytes().splitlines()]
        header = next(csv.reader(lines[:1]), [])
        if missing := sorted(set(_MELD_COLUMNS) - set(header)):
            raise ValueError(f"{table}: has the columns {header}, and lacks {missing}; take the published table.")
        for number, line in enumerate(lines[1:], start=2):
            try:
                if line.strip():
                    dialogue, utterance = _read_meld_line(line, header, path, split)
                    if utterance.number in dialogues[dialogue]:
                        raise SkipError("duplicate", f"dialogue {dialogue} has utterance {utterance.number} twice.")
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
    return require_file(root / split if os.path.isfile(root / split / path) else root, path)


def _decode_table_line(line: bytes) -> str:
    """Decode a line of a table that may be UTF-8, Windows-1252, or one saved as the other."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    return text.translate(_WINDOWS_CHARACTERS)


def _read_meld_line(line: str, header: list[str], root: Path, split: str) -> tuple[int, Utterance]:
    """Return the number of a dialogue and an utterance of it."""
    try:
        values = next(csv.reader([line], strict=True))
        row = dict(zip(header, values, strict=True))
        dialogue, index = int(row["Dialogue_ID"]), int(row["Utterance_ID"])
    except (csv.Error, ValueError) as error:
        raise SkipError("bad_row", f"{error}; the row is {line[:60]!r}.") from error
    text, labels = row["Utterance"].strip(), (row["Sentiment"].capitalize(), row["Emotion"].capitalize())
    if not text:
        raise SkipError("missing_text", "Utterance is empty; an utterance needs its words.")
    # The archive of a split may have been unpacked in two places; the corrected clip comes first.
    published, name = _MELD_SPLITS[split][1], f"dia{dialogue}_utt{index}.mp4"
    folder = published if (root / published).is_dir() else f"{split}/{published}"
    corrected = f"{folder}/final_videos_test{name}"
    clip = find_clip(root, corrected if (root / corrected).is_file() else f"{folder}/{name}")
    part = Part(text, str(clip), ref=make_reference("meld", f"{published}/{clip.name}"))
    return dialogue, Utterance(index, row["Speaker"].strip(), part, *labels)


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
    for dialogue, entries in sorted(metadata.items(), key=lambda entry: int(entry[0])):
        item, utterances = f"dailytalk dialogue {dialogue}", []
        for index, entry in sorted((int(key), entry) for key, entry in entries.items()):
            try:
                utterances.append(_read_dailytalk_entry(path, dialogue, index, entry))
            except SkipError as error:
                yield Skipped(f"{item} utterance {index}", error.kind, str(error))
        yield from cut_dialogue(utterances, item, group=dialogue, **fields)


def _read_dailytalk_entry(root: Path, dialogue: str, index: int, entry: Mapping[str, Any]) -> Utterance:
    text, speaker = entry.get("text"), entry.get("speaker")
    if not (isinstance(text, str) and text.strip()):
        raise SkipError("missing_text", f"text is {text!r}; an utterance needs its words.")
    primary = str(entry.get("act") or UNKNOWN).strip().capitalize()
    secondary = str(entry.get("emotion")).strip().title()
    relative = f"data/{dialogue}/{index}_{speaker}_d{dialogue}.wav"
    part = Part(text.strip(), str(find_clip(root, relative)), ref=make_reference("dailytalk", relative))
    return Utterance(index, str(speaker), part, primary, secondary)


def read_sample(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """The bundled sample: real recordings of a game and of telephone prompts, as OGG/Opus; needs no package.

    Origin, language and licences: `sample/README.md` has them and the notices. Expected tree:

        sample/manifest.jsonl                  one episode per line, each part with its words, start_s and end_s
        sample/amazon_queen/*.ogg              one file per episode, 16 kHz mono, the parts one after another
        sample/asterisk/*.ogg
    """
    manifest = (path or SAMPLE) / "manifest.jsonl"
    if not manifest.is_file():
        raise FileNotFoundError(f"{manifest}: not found; the sample is in the repository, give the path to it.")

    def read(row: dict[str, Any], item: str) -> Iterator[Episode]:
        relative = row.pop("audio")
        clip, ref = str(find_clip(manifest.parent, relative)), make_reference("sample", relative)
        turns = [
            Turn(turn["role"], tuple(Part(audio=clip, ref=ref, **part) for part in turn["parts"]))
            for turn in row.pop("turns")
        ]
        yield Episode(turns=tuple(turns), native_coding=tuple(row.pop("native_coding")), **row)

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

    def read(line: dict[str, Any], item: str) -> Iterator[Recording]:
        row = line | replaced
        if bad := [key for key in ("file", "language", "license") if not (isinstance(row.get(key), str) and row[key])]:
            raise SkipError("missing_field", f"{bad} are absent or no text; fetch into this folder again.")
        clip = find_clip(path, row["file"])
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


def read_scripts(path: Path | None = None, *, balanced: bool = False) -> Iterator[ScriptPair | Skipped]:
    """Colloquial scripts: dialogues in written style, each rewritten in spoken style (section 3.1, text only).

    Origin: written for this project, about everyday life (the paper has 250 scenarios in ten domains). Language: en.
    Licence: Apache-2.0. How to obtain: two files are beside this package.

    - `colloquial_scripts.jsonl`, level easy: 210 pairs of 4 to 8 turns in ten domains. A count of commas separates the
      sides of every pair.
    - `balanced_scripts.jsonl`, with the option `balanced`: 300 pairs of 4 or 6 turns in fifteen domains, of which 100
      have a third side, a caricature of speech, that loses against the spoken one. The difference lies in how a
      sentence is built: planned and packed on the written side; one thought after the other, with repairs and
      reactions, on the spoken side. Both sides have as many turns, nearly as many words, and in each turn nearly as
      many punctuation marks (`surface_counts.find_imbalance`). Of the spoken sides against the written ones, no count
      alone orders more than 65% (`surface_counts.require_balance`). Fillers and word length do identify a caricature.
      Rows of these pairs name the source `balanced_scripts`.

    A domain is held out whole, so that no topic is met in training and in test.
    """
    source = "balanced_scripts" if balanced else "colloquial_scripts"

    def read(row: dict[str, Any], item: str) -> Iterator[ScriptPair | Skipped]:
        try:
            pairs = [_make_script(row, style, source) for style in ("written", *{"caricature"} & set(row))]
        except (KeyError, TypeError) as error:
            raise SkipError("bad_row", f"a field is missing or of another kind: {error!r}.") from error
        for pair in pairs:
            reason = balanced and find_imbalance(*_list_sides(pair))
            yield Skipped(item, "unbalanced", f"{pair.written.name}: {reason}") if reason else pair

    found = list(read_json_lines(path or SCRIPTS / f"{source}.jsonl", source, read))
    if balanced:
        pairs = [item for item in found if isinstance(item, ScriptPair) and item.written.secondary != "caricature"]
        require_balance(_list_sides(pair) for pair in pairs)
    yield from found


def _list_sides(pair: ScriptPair) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    spoken, written = ([{"content": turn.text} for turn in side.turns] for side in (pair.spoken, pair.written))
    return spoken, written


def _make_script(row: Mapping[str, Any], style: str, source: str) -> ScriptPair:
    """Return the spoken side against one that loses: the written one, or the caricature as a pair of its own."""
    level = str(row.get("level", "easy")) if style == "written" else style
    common = {"source": source, "subset": "colloquialness", "group": row.get("group", row["scenario_id"])}
    common |= {"split_group": row["domain"], "primary": row["domain"], "secondary": level, "language": "en"}
    common |= {"license": row.get("license", "Apache-2.0")}
    turns = {side: tuple(Turn(t["role"], (Part(t["content"]),)) for t in row[side]) for side in (style, "spoken")}
    written, spoken = (Episode(f"{row['scenario_id']}/{side}", turns=turns[side], **common) for side in turns)
    return ScriptPair(written, spoken if style == "written" else replace(spoken, name=f"{spoken.name}-{style}"))
