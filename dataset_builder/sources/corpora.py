"""Corpora of recordings and scripts: MELD, DailyTalk, the bundled sample and scripts, downloads of `fetching`.

One function each; its docstring is the card of the corpus.
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
# Windows-1252 has quotes and dashes where Unicode has control characters, which transcripts do not contain.
_WINDOWS_CHARACTERS = {
    code: bytes([code]).decode("cp1252") for code in range(0x80, 0xA0) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}
FETCHED = "manifest.jsonl"
DEFAULT_LICENSE = "LicenseRef-YouTube"
# Files of incomplete downloads, and metadata files beside downloads.
_NO_MEDIA = {".part", ".ytdl", ".temp", ".json", ".jsonl", ".txt", ".vtt"}


class Utterance(NamedTuple):
    """A line of a dialogue; a jump in `number` marks a missing utterance."""

    number: int
    speaker: str
    part: Part
    primary: str = UNKNOWN
    secondary: str = UNKNOWN


def cut_dialogue(utterances: Iterable[Utterance], item: str, group: str, **fields: Any) -> Iterator[Episode | Skipped]:
    """Cut a dialogue of single utterances into episodes; yield a `Skipped` for every turn outside an episode.

    Consecutive utterances of one speaker are one turn with several parts. An episode is the longest stretch of two
    alternating speakers: it ends before a third speaker, at a missing utterance (its neighbours do not answer each
    other), and after 16 turns. If the number of turns is odd, the last one begins the next stretch, or is skipped if
    none follows. The last utterance gives the labels, because it ends the turn that the paper judges (section B.1,
    phase 2).
    """
    # In an unbroken run, number and position grow together.
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
    """MELD: acted English dialogue from a television series, with emotion and sentiment per utterance (semi-wild).

    Origin: Poria et al., 2019, from the series Friends. Size: 1,433 dialogues with 13,708 utterances of 3.6 s on
    average (the paper counts 21.67 hours of turns). Language: en. Licence: the annotations are GPL-3.0; the owners of
    the series hold the rights to the clips, and users are responsible for using them in research.

    How to obtain: download `MELD.Raw.tar.gz` from https://affective-meld.github.io, unpack it and the three archives
    in it. Expected tree after unpacking; a table and its folder may also be together in `train/`, `dev/`, `test/`:

        train_sent_emo.csv    train_splits/dia<D>_utt<U>.mp4
        dev_sent_emo.csv      dev_splits_complete/dia<D>_utt<U>.mp4
        test_sent_emo.csv     output_repeated_splits_test/dia<D>_utt<U>.mp4, final_videos_testdia<D>_utt<U>.mp4

    If the test folder has both names of a clip, the name with the prefix is the corrected clip and is used. Columns:
    `Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID,Season,Episode,StartTime,EndTime`. The tables
    mix UTF-8 and Windows-1252 quotes; some numbers of `Utterance_ID` are missing.

    How it is read: words and labels are trusted; there is no VAD or ASR (section B.1). The paper enhances the clips,
    which have laughter and music; a build does so if the source has `enhance: true`. Dialogues may have several
    speakers; `cut_dialogue` cuts them into stretches of two. The primary label is the sentiment of the last utterance,
    the secondary label its emotion (Table 5). Groups are the dialogues; all have the same speakers. The builder skips
    turns longer than 60 s, because some clips are known to be cut wrongly.
    """
    path = path or Path("MELD.Raw")
    tables = {}
    for split, (name, _) in _MELD_SPLITS.items():
        tables[split] = next((place for place in (path / name, path / split / name) if place.is_file()), None)
    if not any(tables.values()):
        raise FileNotFoundError(f"{path}: MELD not found; download and unpack MELD.Raw.tar.gz, and give its folder.")
    for split, table in tables.items():
        if table is None:
            reason = f"{_MELD_SPLITS[split][0]} is neither in {path} nor in {path / split}."
            yield Skipped(f"meld {split}", "missing_table", reason)
            continue
        dialogues: dict[int, dict[int, Utterance]] = defaultdict(dict)
        # Parse line by line, so that a stray quote costs only one row.
        lines = [_decode_table_line(line) for line in table.read_bytes().splitlines()]
        header = next(csv.reader(lines[:1]), [])
        if missing := sorted(set(_MELD_COLUMNS) - set(header)):
            raise ValueError(f"{table}: has the columns {header} and lacks {missing}; use the published table.")
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
    """Return a clip, for all ways of unpacking the archives."""
    split = next((split for split, (_, folder) in _MELD_SPLITS.items() if path.startswith(f"{folder}/")), "")
    return require_file(root / split if os.path.isfile(root / split / path) else root, path)


def _decode_table_line(line: bytes) -> str:
    """Decode a line that may be UTF-8, Windows-1252, or one saved as the other."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    return text.translate(_WINDOWS_CHARACTERS)


def _read_meld_line(line: str, header: list[str], root: Path, split: str) -> tuple[int, Utterance]:
    """Return the number of a dialogue and one of its utterances."""
    try:
        values = next(csv.reader([line], strict=True))
        row = dict(zip(header, values, strict=True))
        dialogue, index = int(row["Dialogue_ID"]), int(row["Utterance_ID"])
    except (csv.Error, ValueError) as error:
        raise SkipError("bad_row", f"{error}; the row is {line[:60]!r}.") from error
    text, labels = row["Utterance"].strip(), (row["Sentiment"].capitalize(), row["Emotion"].capitalize())
    if not text:
        raise SkipError("missing_text", "Utterance is empty; it needs words.")
    # The archive of a split may be unpacked in two places; the corrected clip comes first.
    published, name = _MELD_SPLITS[split][1], f"dia{dialogue}_utt{index}.mp4"
    folder = published if (root / published).is_dir() else f"{split}/{published}"
    corrected = f"{folder}/final_videos_test{name}"
    clip = find_clip(root, corrected if (root / corrected).is_file() else f"{folder}/{name}")
    part = Part(text, str(clip), ref=make_reference("meld", f"{published}/{clip.name}"))
    return dialogue, Utterance(index, row["Speaker"].strip(), part, *labels)


def read_dailytalk(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """DailyTalk: everyday dialogues read by two speakers in a studio, with dialogue act and emotion (scripted).

    Origin: Lee et al., 2023: 2,541 dialogues of DailyDialog, adapted and recorded by one woman and one man. Size:
    23,773 utterances, about 20 hours (21.93 in the paper), 44.1 kHz. Language: en. Licence: CC-BY-SA-4.0, for academic
    use.

    How to obtain: download the archive linked from https://github.com/keonlee9420/DailyTalk, and unpack it.
    Expected tree:

        dailytalk/metadata.json          {dialogue: {utterance: {"text", "speaker", "emotion", "act", ...}}}
        dailytalk/data/<dialogue>/<utterance>_<speaker>_d<dialogue>.wav, and the same name in .txt

    How it is read: words and labels are trusted; there is no VAD or ASR (section B.1). The paper enhances the clips; a
    build does so if the source has `enhance: true`. The speakers alternate; `cut_dialogue` cuts a dialogue of more
    than 16 turns into consecutive episodes in one group. The primary label is the dialogue act of the last utterance
    (`Unknown` if missing), the secondary label its emotion (Table 5).
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
        raise SkipError("missing_text", f"text is {text!r}; an utterance needs words.")
    primary = str(entry.get("act") or UNKNOWN).strip().capitalize()
    secondary = str(entry.get("emotion")).strip().title()
    relative = f"data/{dialogue}/{index}_{speaker}_d{dialogue}.wav"
    part = Part(text.strip(), str(find_clip(root, relative)), ref=make_reference("dailytalk", relative))
    return Utterance(index, str(speaker), part, primary, secondary)


def read_sample(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """The bundled sample: real recordings of a game and of telephone prompts, as OGG/Opus; needs no package.

    Origin, language, licences and notices: see `sample/README.md`. Expected tree:

        sample/manifest.jsonl                  one episode per line, each part with its words, start_s and end_s
        sample/amazon_queen/*.ogg              one file per episode, 16 kHz mono, the parts one after another
        sample/asterisk/*.ogg
    """
    manifest = (path or SAMPLE) / "manifest.jsonl"
    if not manifest.is_file():
        raise FileNotFoundError(f"{manifest}: not found; give the path of the sample in the repository.")

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

    Origin: channels of your choice; the paper uses interviews and podcasts, 1,954.2 hours of raw audio (section B.1).
    Language: your choice, English by default. Licence: the licence of each video, else `LicenseRef-YouTube`, the
    standard licence. It forbids redistribution, so the audio is never part of a release.

    How to obtain: `fetching.fetch` downloads recordings with `yt-dlp`, for non-commercial research, if the law and the
    site's terms allow it. It writes this tree:

        <folder>/<video id>.<extension>
        <folder>/manifest.jsonl     id, extractor, url, file, duration_s, language, license, for each complete file

    The manifest has no title, uploader or channel, so that they cannot be released by mistake. A release contains only
    the id, as part of a reference `youtube:<video id>`, which also matches a copy in another format. The pipeline cuts
    the recordings into episodes.
    """
    if path is None or not (path / FETCHED).is_file():
        raise FileNotFoundError(f"{path}: {FETCHED} not found; fetch recordings first, or give a folder that has it.")
    replaced = {key: value for key, value in (("language", language), ("license", license)) if value}

    def read(line: dict[str, Any], item: str) -> Iterator[Recording]:
        row = line | replaced
        if bad := [key for key in ("file", "language", "license") if not (isinstance(row.get(key), str) and row[key])]:
            raise SkipError("missing_field", f"{bad} are missing or not text; fetch into this folder again.")
        clip = find_clip(path, row["file"])
        ref = make_reference("youtube", clip.stem)
        yield Recording(clip.stem, str(clip), ref, "youtube", "wild", row["language"], row["license"])

    yield from read_json_lines(path / FETCHED, "youtube", read)


def locate_youtube(root: Path, path: str) -> Path:
    """Return the file of a video in any format."""
    if Path(path).name != path:
        raise ValueError(f"reference youtube:{path}: must have the form 'youtube:VIDEO_ID'.")
    # An id may contain dots, an extension may not: `a.b.webm` belongs to `a.b`, not to `a`.
    files = [file for file in sorted(root.glob(f"{glob.escape(path)}.*")) if file.is_file() and file.stem == path]
    files = [file for file in files if file.suffix not in _NO_MEDIA]
    if not files:
        raise FileNotFoundError(f"{root / path}.*: not found; fetch video {path} again.")
    return files[0]


def read_scripts(path: Path | None = None, *, balanced: bool = False) -> Iterator[ScriptPair | Skipped]:
    """Colloquial scripts: dialogues in written style, each rewritten in spoken style (section 3.1, text only).

    Origin: written for this project, about everyday life (the paper has 250 scenarios in ten domains). Language: en.
    Licence: Apache-2.0. How to obtain: two files are part of this package.

    - `colloquial_scripts.jsonl`, level easy: 210 pairs of 4 to 8 turns in ten domains. Counting commas separates the
      sides of every pair.
    - `balanced_scripts.jsonl`, with the option `balanced`: 300 pairs of 4 or 6 turns in fifteen domains. 100 of them
      have a third side, a caricature of speech, which loses against the spoken side. The sides differ in sentence
      structure: the written side is planned and dense; the spoken side has one thought after another, with repairs and
      reactions. Both sides have the same number of turns, nearly the same number of words, and in each turn nearly the
      same number of punctuation marks (`surface_counts.find_imbalance`). No single count orders more than 65% of the
      spoken and written sides (`surface_counts.require_balance`). Fillers and word length do identify a caricature.
      Rows of these pairs have the source `balanced_scripts`.

    Whole domains are held out, so that no topic is in both training and test.
    """
    source = "balanced_scripts" if balanced else "colloquial_scripts"

    def read(row: dict[str, Any], item: str) -> Iterator[ScriptPair | Skipped]:
        try:
            pairs = [_make_script(row, style, source) for style in ("written", *{"caricature"} & set(row))]
        except (KeyError, TypeError) as error:
            raise SkipError("bad_row", f"a field is missing or has the wrong type: {error!r}.") from error
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
    """Return the spoken side against a losing one: the written side, or the caricature as a separate pair."""
    level = str(row.get("level", "easy")) if style == "written" else style
    common = {"source": source, "subset": "colloquialness", "group": row.get("group", row["scenario_id"])}
    common |= {"split_group": row["domain"], "primary": row["domain"], "secondary": level, "language": "en"}
    common |= {"license": row.get("license", "Apache-2.0")}
    turns = {side: tuple(Turn(t["role"], (Part(t["content"]),)) for t in row[side]) for side in (style, "spoken")}
    written, spoken = (Episode(f"{row['scenario_id']}/{side}", turns=turns[side], **common) for side in turns)
    return ScriptPair(written, spoken if style == "written" else replace(spoken, name=f"{spoken.name}-{style}"))
