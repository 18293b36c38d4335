"""Drascula: The Vampire Strikes Back: acted English dialogue of a 1996 adventure game (semi-wild).

Origin: the English version of the game by Alcachofa Soft; every line is spoken by an actor for its character.
Size: 783 clips; 38 episodes, 15 minutes, between the player and nine others. The package does not name the actors.
The other lines are comments of the player alone, or belong to scenes whose order the engine knows and the data do not.
Language: en. Licence: free to distribute and modify with its readme and notices, not to be sold by itself; copyright
1996-2008 Alcachofa Soft S.L. The recordings are raw samples of 8 bits at 11,025 Hz.

How to obtain: `apt-get install drascula` (Debian main). Expected files in `/usr/share/scummvm/drascula/en`:

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

import struct
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part

from ..references import make_reference
from .assembly import cut_lines, make_acted_episode
from .reading import capitalise_sentences, find_clip, require_file, wrap_8_bit


DEFAULT_PATH = Path("/usr/share/scummvm/drascula/en")
_DATA = "drascula.dat"
_RATE_HZ = 11_025
# What the engine leaves out at both ends of a clip.
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


class Line(NamedTuple):
    """A line by its character and number."""

    speaker: str
    number: int


class Game(NamedTuple):
    """The words of the lines of each character, and the lines of each sequence by chapter and number."""

    words: dict[str, list[str]]
    sequences: dict[tuple[int, int], list[Line]]


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """Yield what the player says with its answer, and the sequences that begin by themselves.

    Args:
        path (`Path`, *optional*): The folder of the English version; Debian's place by default.

    Raises:
        FileNotFoundError: There is no `drascula.dat`.
        ValueError: The file is not that of the game.
    """
    root = path or DEFAULT_PATH
    if not (root / _DATA).is_file():
        raise FileNotFoundError(f"{root / _DATA}: not found; apt-get install drascula, or give a path.")
    game = parse_game((root / _DATA).read_bytes(), str(root / _DATA))
    answers = []
    for number, chapter in _CHAPTERS.items():
        try:
            options = _read_options(root / f"OP_{number}.CAL")
        except (OSError, ValueError) as error:
            yield Skipped(f"drascula OP_{number}.CAL", "bad_entry", f"not the options of a conversation: {error}.")
            continue
        for said, answer in options:
            if (chapter, answer) in game.sequences:
                answers.append((chapter, answer))
                lines = [Line(_PLAYER, said), *game.sequences[chapter, answer]]
                yield from _make_episodes(root, game, f"op_{number}/{said}", chapter, lines)
    for (chapter, sequence), lines in game.sequences.items():
        if (chapter, sequence) not in answers:
            yield from _make_episodes(root, game, f"{chapter}/{sequence}", chapter, lines)


def locate(root: Path, path: str, member: str | None = None) -> bytes:
    """Return a clip as a WAV file; see `sources.locate`."""
    if member:
        raise ValueError(f"reference drascula:{path}#{member}: must read 'drascula:CLIP.ALS'.")
    return _wrap(require_file(root, path).read_bytes())


def parse_game(data: bytes, label: str) -> Game:
    """Read the words and sequences of `drascula.dat`.

    Args:
        data (`bytes`): The file.
        label (`str`): What to call it in an error.

    Raises:
        ValueError: It is not that file, or is cut off.
    """
    if data[:8] != b"DRASCULA":
        raise ValueError(f"{label}: begins with {data[:8]!r}; the game's file begins with b'DRASCULA'.")
    reader = _Reader(data, 9)
    try:
        (num_characters,) = reader.read(1)
        reader.position += 4 * num_characters
        for width in _WIDTHS:
            reader.read_rows(width)
        sequences: dict[tuple[int, int], list[Line]] = {}
        for chapter, sequence, command, argument in reader.read_rows(4):
            if command in _SPEAKERS:
                sequences.setdefault((chapter, sequence), []).append(Line(_SPEAKERS[command], argument))
        (num_languages,) = reader.read(1)
        words = {speaker: reader.read_lines(num_languages) for speaker in _TABLES}
    except (struct.error, IndexError) as error:
        raise ValueError(f"{label}: ends in its tables ({error}); get the file again.") from error
    return Game(words, sequences)


class _Reader:
    def __init__(self, data: bytes, position: int):
        self.data, self.position = data, position

    def read(self, count: int) -> tuple[int, ...]:
        values = struct.unpack_from(f">{count}H", self.data, self.position)
        self.position += 2 * count
        return values

    def read_rows(self, width: int) -> list[tuple[int, ...]]:
        return [self.read(width) for _ in range(self.read(1)[0])]

    def read_lines(self, num_languages: int) -> list[str]:
        """Return the lines of the first language; the first of them is never spoken."""
        (count,) = self.read(1)
        blocks = [self._read_block() for _ in range(num_languages)]
        # The size in front of a line, of two bytes, reaches to the line after it.
        place, lines = 4, []
        for _ in range(count):
            (size,) = struct.unpack_from(">H", blocks[0], place - 2)
            lines.append(blocks[0][place : place + size].split(b"\0")[0].decode("cp1252", errors="replace"))
            place += size
        return lines

    def _read_block(self) -> bytes:
        (size,) = self.read(1)
        (block,) = struct.unpack_from(f"{size}s", self.data, self.position)
        self.position += size
        return block


def _read_options(path: Path) -> list[tuple[int, int]]:
    """Return the lines of the player in a conversation, by number, with the sequences that answer them."""
    text = bytes(0xFF - byte for byte in path.read_bytes()).decode("latin-1")
    entries = [line for line in text.replace("\r", "").split("\n") if line]
    # Behind the words are the clips, behind these the answers; the last of the four options ends the conversation.
    clips, answers = entries[4 : 4 + _OPTIONS], entries[8 : 8 + _OPTIONS]
    return [(int(Path(clip).stem), int(answer)) for clip, answer in zip(clips, answers, strict=True)]


def _make_episodes(
    root: Path, game: Game, name: str, chapter: int, lines: Sequence[Line]
) -> Iterator[Episode | Skipped]:
    partner = next((line.speaker for line in lines if line.speaker != _PLAYER), _PLAYER)
    parts = ((line.speaker, _make_part(root, game, line)) for line in lines)
    for built in cut_lines(parts, f"drascula {name}"):
        yield built if isinstance(built, Skipped) else _make_episode(name, f"{chapter}/{partner}", built)


def _make_part(root: Path, game: Game, line: Line) -> Part | Skipped:
    file_name = f"{line.speaker}{line.number}.ALS"
    item = f"drascula {file_name}"
    words = game.words[line.speaker]
    if line.number >= len(words) or not words[line.number]:
        return Skipped(item, "missing_text", f"{_DATA} has no words for it; a turn needs its words.")
    clip = find_clip(root, file_name, item)
    if isinstance(clip, Skipped):
        return clip
    text = capitalise_sentences(words[line.number].lower())
    return Part(text, _wrap(clip.read_bytes()), ref=make_reference("drascula", file_name))


def _wrap(clip: bytes) -> bytes:
    return wrap_8_bit(clip[_EDGE_BYTES:-_EDGE_BYTES], _RATE_HZ)


_make_episode = partial(make_acted_episode, "drascula", license="LicenseRef-Drascula", native_coding="pcm_u8_11k")
