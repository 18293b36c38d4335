"""Drascula: The Vampire Strikes Back: acted English dialogue of a 1996 adventure game, which no training heard.

    apt-get install drascula
    python -m benchmarks.open_recordings.drascula /usr/share/scummvm/drascula/en runs/audio/drascula

The English version of the game by Alcachofa Soft: 38 dialogues, 15 minutes, between the player and nine others, each
line spoken by an actor for its character. The other lines are comments of the player alone, or belong to scenes whose
order the engine knows and the data do not. Free to distribute and modify with its readme and notices, not to be sold
by itself; copyright 1996-2008 Alcachofa Soft S.L. The recordings are raw samples of 8 bits at 11,025 Hz. Files:

    drascula.dat        the words of all lines, and which lines are spoken one after another
    OP_<number>.CAL     what the player can say in a conversation, each letter as its complement
    <character><n>.ALS  line n of a character; those of the player have a number alone

Layout of `drascula.dat` (integers of two bytes, big-endian): `DRASCULA`, a version byte, the characters of the font,
eleven tables of the engine, the table of sequences (chapter, sequence, command, argument), the number of languages,
and a table of lines for each character: their number, then for each language a size in bytes and the lines, each
behind its own size. English comes first. A command says who speaks, and its argument which line.

The words are in capitals there. They are written small, but for the beginnings of sentences and "I".
"""

from __future__ import annotations

import io
import re
import struct
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

from sdiareward.dataset_builder.episodes import Episode, Part
from sdiareward.dataset_builder.sources.corpora import Utterance, cut_dialogue

from .folders import Dialogue, run


_RATE_HZ = 11_025
# The engine skips them at both ends of a clip.
_EDGE_BYTES = 32
_PLAYER = ""
# The characters of the tables of lines, in their order, by the beginning of the names of their clips.
_TABLES = (_PLAYER, "D", "B", "BJ", "E", "I", "L", "P", "T", "VB")
# Commands that let a character speak; the others move figures, set flags or wait.
_SPEAKERS = {13: _PLAYER, 14: "B", 15: "P", 16: "BJ", 17: "VB", 18: "VB", 19: "I", 20: "L", 21: "E", 22: "D"}
_SPEAKERS |= {23: "T", 24: "T"}
# Integers in a row of each table between the font and the sequences.
_WIDTHS = (2, 2, 1, 2, 1, 2, 1, 1, 10, 10, 5)
# The chapter in which each conversation takes place, of those whose answers are among the sequences.
_CHAPTERS = {1: 2, 2: 2, 3: 2, 5: 2, 6: 4, 8: 5, 9: 5, 10: 5, 11: 6, 12: 6, 13: 1}
_OPTIONS = 3

# A line by its character and number.
Line = tuple[str, int]


def read_dialogues(root: Path) -> Iterator[Dialogue]:
    """Yield what the player says with its answer, and the sequences that begin by themselves."""
    words, sequences = _read_game((root / "drascula.dat").read_bytes())
    answers = []
    for number, chapter in _CHAPTERS.items():
        for said, answer in _read_options(root / f"OP_{number}.CAL"):
            if (chapter, answer) in sequences:
                answers.append((chapter, answer))
                lines = [(_PLAYER, said), *sequences[chapter, answer]]
                yield from _cut(root, words, f"op_{number}/{said}", chapter, lines)
    for (chapter, sequence), lines in sequences.items():
        if (chapter, sequence) not in answers:
            yield from _cut(root, words, f"{chapter}/{sequence}", chapter, lines)


def _read_game(data: bytes) -> tuple[dict[str, list[str]], dict[tuple[int, int], list[Line]]]:
    """Return the words of the lines of each character, and the lines of each sequence by chapter and number."""
    file = io.BytesIO(data)
    file.seek(9)
    file.seek(4 * _read_numbers(file, 1)[0], io.SEEK_CUR)
    for width in _WIDTHS:
        _read_rows(file, width)
    sequences: dict[tuple[int, int], list[Line]] = {}
    for chapter, sequence, command, argument in _read_rows(file, 4):
        if command in _SPEAKERS:
            sequences.setdefault((chapter, sequence), []).append((_SPEAKERS[command], argument))
    (num_languages,) = _read_numbers(file, 1)
    return {speaker: _read_words(file, num_languages) for speaker in _TABLES}, sequences


def _read_numbers(file: io.BytesIO, count: int) -> tuple[int, ...]:
    return struct.unpack(f">{count}H", file.read(2 * count))


def _read_rows(file: io.BytesIO, width: int) -> list[tuple[int, ...]]:
    return [_read_numbers(file, width) for _ in range(_read_numbers(file, 1)[0])]


def _read_words(file: io.BytesIO, num_languages: int) -> list[str]:
    """Return the lines of the first language; the first of them is never spoken."""
    (count,) = _read_numbers(file, 1)
    block, *_ = [file.read(*_read_numbers(file, 1)) for _ in range(num_languages)]
    # The size in front of a line, of two bytes, reaches to the line after it.
    place, lines = 4, []
    for _ in range(count):
        (size,) = struct.unpack_from(">H", block, place - 2)
        lines.append(block[place : place + size].split(b"\0")[0].decode("cp1252", errors="replace"))
        place += size
    return lines


def _read_options(path: Path) -> list[tuple[int, int]]:
    """Return the lines of the player in a conversation, by number, with the sequences that answer them."""
    text = bytes(0xFF - byte for byte in path.read_bytes()).decode("latin-1")
    entries = [line for line in text.replace("\r", "").split("\n") if line]
    # Behind the words are the clips, behind these the answers; the last of the four options ends the conversation.
    clips, answers = entries[4 : 4 + _OPTIONS], entries[8 : 8 + _OPTIONS]
    return [(int(Path(clip).stem), int(answer)) for clip, answer in zip(clips, answers, strict=True)]


def _cut(
    root: Path, words: dict[str, list[str]], name: str, chapter: int, lines: Sequence[Line]
) -> Iterator[Dialogue]:
    """Yield stretches of two alternating speakers; a line without words or recording ends one."""
    partner = next((speaker for speaker, _ in lines if speaker != _PLAYER), _PLAYER)
    utterances = []
    for place, (speaker, number) in enumerate(lines):
        clip = root / f"{speaker}{number}.ALS"
        if words[speaker][number : number + 1] not in ([], [""]) and clip.is_file():
            part = Part(capitalise_sentences(words[speaker][number].lower()), _wrap(clip.read_bytes()))
            utterances.append(Utterance(place, speaker, part))
    fields = dict.fromkeys(("source", "subset", "language", "license"), "")
    for episode in cut_dialogue(utterances, name, group=name, **fields):
        if isinstance(episode, Episode):
            yield Dialogue(episode.name, f"{chapter}/{partner}", episode.turns)


def capitalise_sentences(words: str) -> str:
    """Return words with a capital at the beginning of each sentence, and the pronoun "I" in one."""
    words = re.sub(r"\bi\b", "I", " ".join(words.split()))
    return re.sub(r"(?:^|(?<=[.!?] ))\W*\w", lambda first: first[0].upper(), words)


def _wrap(clip: bytes) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(_RATE_HZ)
        file.writeframes(clip[_EDGE_BYTES:-_EDGE_BYTES])
    return buffer.getvalue()


def main() -> None:
    run(
        "drascula",
        read_dialogues,
        language="en",
        license="LicenseRef-Drascula",
        subset="semi_wild",
        native_coding=["pcm_u8_11k"],
    )


if __name__ == "__main__":
    main()
