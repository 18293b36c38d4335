"""MELD: acted English dialogue of a television series, with emotion and sentiment of every utterance (semi-wild).

Origin: Poria et al., 2019, from the series Friends. Size: 1,433 dialogues of 13,708 utterances, 3.6 s each on average
(the paper counts 21.67 hours of turns). Language: en. Licence: the annotations are GPL-3.0; the clips belong to the
owners of the series, using them for research is the user's own responsibility.

How to obtain: download `MELD.Raw.tar.gz` from https://affective-meld.github.io, unpack it and the three archives
in it. Expected tree, as they unpack; a table and its folder may also be together in `train/`, `dev/`, `test/`:

    train_sent_emo.csv    train_splits/dia<D>_utt<U>.mp4
    dev_sent_emo.csv      dev_splits_complete/dia<D>_utt<U>.mp4
    test_sent_emo.csv     output_repeated_splits_test/dia<D>_utt<U>.mp4, final_videos_testdia<D>_utt<U>.mp4

Where the test folder has both names of a clip, the one with the prefix is the corrected one and is taken. Columns:
`Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID,Season,Episode,StartTime,EndTime`. The tables mix
UTF-8 and Windows-1252 quotes; some numbers of `Utterance_ID` are missing.

How it is read: words and labels are trusted, there is no VAD or ASR (section B.1). The paper enhances the clips,
which have laughter and music; a build does where the source has `enhance: true`. Dialogues may have several speakers;
`assembly` cuts them into stretches of two. Primary label is the sentiment, secondary the emotion, of the last
utterance (Table 5). Groups are the dialogues; the speakers return in all of them. A turn longer than 60 s is left to
the builder, which skips it: some clips are known to be cut wrongly.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part
from sdiareward.pairs.schema import TAXONOMY

from ..references import make_reference
from .assembly import Stretch, Utterance, cut_dialogue
from .reading import decode_table_line, find_clip, require_file


# Table and folder of clips by split.
_SPLITS = {
    "train": ("train_sent_emo.csv", "train_splits"),
    "dev": ("dev_sent_emo.csv", "dev_splits_complete"),
    "test": ("test_sent_emo.csv", "output_repeated_splits_test"),
}
_COLUMNS = ("Utterance", "Speaker", "Emotion", "Sentiment", "Dialogue_ID", "Utterance_ID")
_CORRECTED_PREFIX = "final_videos_test"


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """Yield stretches of two alternating speakers, by split and dialogue."""
    tables = {split: _find_table(path, split) for split in _SPLITS} if path else {}
    if path is None or not any(tables.values()):
        raise FileNotFoundError(f"{path}: MELD not found; download MELD.Raw.tar.gz, unpack it, and give its folder.")
    for split, table in tables.items():
        if table is None:
            name = _SPLITS[split][0]
            yield Skipped(f"meld {split}", "missing_table", f"{name}: not found in {path} or {path / split}.")
        else:
            yield from _read_split(path, split, table)


def locate(root: Path, path: str) -> Path:
    """Return a clip, whichever way the archives were unpacked."""
    split = next((split for split, (_, folder) in _SPLITS.items() if path.startswith(f"{folder}/")), "")
    nested = root / split
    return require_file(nested if (nested / path).is_file() else root, path)


def _find_table(root: Path, split: str) -> Path | None:
    name = _SPLITS[split][0]
    return next((path for path in (root / name, root / split / name) if path.is_file()), None)


def _read_split(root: Path, split: str, table: Path) -> Iterator[Episode | Skipped]:
    dialogues: dict[int, dict[int, Utterance]] = defaultdict(dict)
    for item, row in read_table(table):
        if isinstance(row, Skipped):
            yield row
            continue
        dialogue, index = int(row["Dialogue_ID"]), int(row["Utterance_ID"])
        utterance = _read_utterance(root, split, row, item)
        if index in dialogues[dialogue]:
            reason = f"dialogue {dialogue} already has an utterance {index}; the first is kept."
            yield Skipped(item, "duplicate", reason)
        elif isinstance(utterance, Skipped):
            yield utterance
        else:
            dialogues[dialogue][index] = utterance
    for dialogue in sorted(dialogues):
        utterances = [dialogues[dialogue][index] for index in sorted(dialogues[dialogue])]
        for stretch in cut_dialogue(utterances, f"meld {split} dialogue {dialogue}"):
            yield stretch if isinstance(stretch, Skipped) else _make_episode(f"{split}/dia{dialogue}", stretch)


def read_table(path: Path) -> Iterator[tuple[str, dict[str, str] | Skipped]]:
    """Yield `(item, row)` for each line; lines are parsed one by one, so that a stray quote costs one row."""
    lines = [decode_table_line(line) for line in path.read_bytes().splitlines()]
    try:
        header = next(csv.reader(lines[:1]), [])
    except csv.Error as error:
        raise ValueError(f"{path}: its first line is no header ({error}); take the published table.") from error
    if missing := [column for column in _COLUMNS if column not in header]:
        raise ValueError(f"{path}: has the columns {header}, and lacks {missing}; take the published table.")
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            item = f"meld {path.name} line {number}"
            yield item, _parse_row(line, header, item)


def _parse_row(line: str, header: list[str], item: str) -> dict[str, str] | Skipped:
    try:
        values = next(csv.reader([line], strict=True))
    except csv.Error as error:
        return Skipped(item, "bad_row", f"{error}; the row is {line[:60]!r}.")
    row = dict(zip(header, values, strict=False))
    if len(values) != len(header):
        return Skipped(item, "bad_row", f"has {len(values)} fields, the table {len(header)}.")
    if not all(row[column].isdecimal() and len(row[column]) < 10 for column in ("Dialogue_ID", "Utterance_ID")):
        numbers = f"{row['Dialogue_ID']!r} and {row['Utterance_ID']!r}"
        return Skipped(item, "bad_row", f"Dialogue_ID and Utterance_ID are {numbers}; numbers are needed.")
    return row


def _read_utterance(root: Path, split: str, row: Mapping[str, str], item: str) -> Utterance | Skipped:
    text, labels = row["Utterance"].strip(), (row["Sentiment"].capitalize(), row["Emotion"].capitalize())
    if not text:
        return Skipped(item, "missing_text", "Utterance is empty; an utterance needs its words.")
    for label, allowed in zip(labels, TAXONOMY["meld"], strict=True):
        if label not in allowed:
            return Skipped(item, "unknown_label", f"{label!r} is not in Table 5, which has {sorted(allowed)}.")
    index = int(row["Utterance_ID"])
    clip = _find_clip(root, split, f"dia{int(row['Dialogue_ID'])}_utt{index}.mp4", item)
    if isinstance(clip, Skipped):
        return clip
    part = Part(text, str(clip), ref=make_reference("meld", f"{_SPLITS[split][1]}/{clip.name}"))
    return Utterance(index, row["Speaker"].strip(), part, *labels)


def _find_clip(root: Path, split: str, name: str, item: str) -> Path | Skipped:
    """Look for the corrected clip first, in both places where the split's archive may have been unpacked."""
    folder = _SPLITS[split][1]
    folder = folder if (root / folder).is_dir() else f"{split}/{folder}"
    corrected = f"{folder}/{_CORRECTED_PREFIX}{name}"
    return find_clip(root, corrected if (root / corrected).is_file() else f"{folder}/{name}", item)


def _make_episode(group: str, stretch: Stretch) -> Episode:
    return Episode(
        name=f"{group}/{stretch.first}",
        source="meld",
        subset="semi_wild",
        group=group,
        turns=stretch.turns,
        primary=stretch.primary,
        secondary=stretch.secondary,
        language="en",
        license="LicenseRef-MELD",
        native_coding=("aac",),
    )
