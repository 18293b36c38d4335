"""Beneath a Steel Sky: acted English dialogue of a 1994 adventure game (semi-wild).

Origin: the talkie version of the game by Revolution Software; every line is spoken by an actor for its character.
Size: 3,491 clips; 650 episodes of 46 scripts, 83 minutes. The package does not name the actors. The other lines are
comments of the player, or are spoken behind a branch of the scripts.
Language: en. Licence: free to distribute and modify with its readme and notices, not to be sold by itself; copyright
1993-1994 Revolution Software Ltd. The recordings are samples of 8 bits at 11,025 Hz.

How to obtain: `apt-get install beneath-a-steel-sky` (Debian main). Expected files in
`/usr/share/scummvm/beneath-a-steel-sky`, version 0.0372:

    sky.dnr     where each file of the archive lies
    sky.dsk     the archive

Layout of `sky.dnr` (integers little-endian): the number of entries, each of eight bytes: number of the file (2), its
place (3; if the highest bit is set, in units of 16 bytes) and its size with flags (3). Many files are packed (`rnc`),
some behind a header of 22 bytes.

- Texts: eight files. A number of a line has the file in its highest four bits. The sizes of the lines are given by 32
  lines and by line, in units of two bits; the letters are Huffman codes.
- Scripts: seven files of words, for each script where it begins, then operations. Three pushes and a call let somebody
  speak: who, the number of the line, a movement. A choice of the player's words is a switch over numbers of lines.
- Clips: their number is that of the line, counted on through the files of texts.

What is spoken one after another, without a branch between, is a dialogue; one that follows a choice begins with the
words that were chosen. Words in capitals for their emphasis are written small.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part

from ..references import make_reference
from .assembly import cut_lines, make_acted_episode
from .reading import capitalise_sentences, wrap_8_bit
from .rnc import SIGNATURE, unpack_rnc


DEFAULT_PATH = Path("/usr/share/scummvm/beneath-a-steel-sky")
_ARCHIVE = "sky.dsk"
_RATE_HZ = 11_025
_HEADER_BYTES = 22
_FIRST_TEXT, _FIRST_SCRIPT, _FIRST_CLIP = 60_600, 60_400, 50_000
_NUM_SCRIPTS = 7
# Number of the first clip of each file of texts.
_CLIPS_BEFORE = (0, 600, 1100, 2430, 3380, 4530, 5080, 5230)
# The tree of the letters: a node before its two branches, `|` for one that branches. What English lacks is cut off.
_TREE = (
    "||| |ea|||os|tn||.ir|||||\0Eu|mA|||lI|dR||NST|||||Ohc|Dg|||LC|pU||!yM|||||PvH|?b|||'f,|GB|||||VkF|qw|||K-W|J*"
    "||||zY|j+|||Q\x85)||Z\x8b<|||||\x95~\x8a|\x87:|||\x7f]#||xX\x91|||||\x88`2||0\x831|||/(=|\x86^||||39|\x984|||}8\\"
    '|"\x90||||&\x8d|56||\x92\x8f|\x8e\x93||||\x8c7\x80_?'
)
# Words that follow each operation of a script; a switch (14) is read by itself.
_NUM_OPERANDS = {0: 1, 2: 1, 5: 1, 6: 1, 9: 1, 11: 2, 15: 1, 16: 1, 18: 1}
_PUSH_VARIABLE, _PUSH_NUMBER, _CALL, _SWITCH = 0, 2, 11, 14
# What follows may be reached from elsewhere, or not at all.
_BRANCHES = (5, 9, 13, _SWITCH, 18, 19, 20)
# Functions that let somebody speak, as a call names them.
_SPEAK = (140, 144, 148, 152)
# The variables that hold the player and what was chosen, and the player's own number.
_PLAYER = ((_PUSH_VARIABLE, 48), (_PUSH_NUMBER, 3))
_CHOSEN = 204
_CALL_WORDS = 9
# No dialogue of the game is that long; a damaged script may have no end.
_MAX_WORDS = 2000

Tree = str | tuple["Tree", "Tree"]


class Line(NamedTuple):
    """A line that a script lets somebody speak: where the call is, who, and the number of the line."""

    place: int
    speaker: str
    number: int


class Archive:
    """Files of the game by number.

    Args:
        root (`Path`): The folder of `sky.dnr` and `sky.dsk`.

    Raises:
        FileNotFoundError: There are no such files.
        ValueError: The first is not a table of the other.
    """

    def __init__(self, root: Path):
        self._disk = root / _ARCHIVE
        table = root / "sky.dnr"
        if not (table.is_file() and self._disk.is_file()):
            raise FileNotFoundError(
                f"{root}: sky.dnr or {_ARCHIVE} not found; apt-get install beneath-a-steel-sky, or give a path."
            )
        data = table.read_bytes()
        if len(data) < 4 or len(data) < 4 + 8 * (count := int.from_bytes(data[:4], "little")):
            raise ValueError(f"{table}: has {len(data)} bytes, fewer than its entries need; get the file again.")
        entries = struct.iter_unpack("<H3s3s", data[4 : 4 + 8 * count])
        self._entries = {number: (_read_place(place), _read_size(size)) for number, place, size in entries}

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def read(self, number: int) -> bytes:
        """Return a file without its header, unpacked.

        Raises:
            ValueError: There is none of that number, or it is damaged.
        """
        if number not in self:
            raise ValueError(f"{self._disk}: has no file {number}; take the game that the card names.")
        place, size = self._entries[number]
        with self._disk.open("rb") as disk:
            disk.seek(place)
            data = disk.read(size)
        for start in (0, _HEADER_BYTES):
            if data[start : start + len(SIGNATURE)] != SIGNATURE:
                continue
            try:
                return unpack_rnc(data[start:])
            except ValueError as error:
                raise ValueError(f"{self._disk}: file {number} {error}") from error
        return data


def _read_place(data: bytes) -> int:
    value = int.from_bytes(data, "little")
    return 16 * (value & 0x7FFFFF) if value >> 23 else value


def _read_size(data: bytes) -> int:
    return int.from_bytes(data, "little") & 0x3FFFFF


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """Yield the dialogues of the scripts, in their order.

    Args:
        path (`Path`, *optional*): The folder of the game; Debian's place by default.

    Raises:
        FileNotFoundError: There is no such game.
        ValueError: Its files are damaged.
    """
    archive = Archive(path or DEFAULT_PATH)
    texts = [archive.read(_FIRST_TEXT + number) for number in range(len(_CLIPS_BEFORE))]
    for number in range(_NUM_SCRIPTS):
        data = archive.read(_FIRST_SCRIPT + number)
        words = struct.unpack(f"<{len(data) // 2}H", data[: len(data) // 2 * 2])
        for lines in read_dialogues(words):
            yield from _make_episodes(archive, texts, f"{number}/{_find_script(words, lines[0].place)}", lines)


def locate(root: Path, path: str, member: str | None = None) -> bytes:
    """Return a clip out of the archive as a WAV file; see `sources.locate`."""
    if path != _ARCHIVE or member is None or not member.isdecimal():
        raise ValueError(f"reference steel_sky:{path}#{member}: must read 'steel_sky:{_ARCHIVE}#NUMBER'.")
    archive, number = Archive(root), int(member)
    if number not in archive:
        raise FileNotFoundError(f"{root}: has no clip {number}; take the archive that the card names.")
    return wrap_8_bit(archive.read(number), _RATE_HZ)


def read_dialogues(words: tuple[int, ...]) -> Iterator[list[Line]]:
    """Yield the lines that a script lets speak one after another.

    Args:
        words (`tuple[int, ...]`): Of one file of scripts.
    """
    chosen = dict(_find_choices(words))
    starts = sorted({*chosen, *(place for place in range(len(words)) if _is_call(words, place))})
    done: set[int] = set()
    for start in starts:
        if start in done and start not in chosen:
            continue
        lines = list(_walk(words, start))
        done.update(line.place for line in lines)
        if start in chosen:
            lines.insert(0, Line(start, "player", chosen[start]))
        if lines:
            yield lines


def _is_call(words: tuple[int, ...], place: int) -> bool:
    """Tell whether three pushes and a call of a function that speaks begin here; the line must be given by number."""
    operations = words[place : place + _CALL_WORDS]
    return (
        len(operations) == _CALL_WORDS
        and operations[0] in (_PUSH_VARIABLE, _PUSH_NUMBER)
        and operations[2] == _PUSH_NUMBER
        and operations[4] in (_PUSH_VARIABLE, _PUSH_NUMBER)
        and operations[6:8] == (_CALL, 3)
        and operations[8] in _SPEAK
    )


def _walk(words: tuple[int, ...], place: int) -> Iterator[Line]:
    """Yield the lines up to the next branch."""
    end = min(len(words), place + _MAX_WORDS)
    while place < end:
        if _is_call(words, place):
            who = (words[place], words[place + 1])
            yield Line(place, "player" if who in _PLAYER else "{}/{}".format(*who), words[place + 3])
            place += _CALL_WORDS
        elif words[place] in _BRANCHES:
            return
        else:
            place += 1 + _NUM_OPERANDS.get(words[place], 0)


def _find_choices(words: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield where each choice of the player leads, and the number of the line that was chosen."""
    for place in range(2, len(words) - 1):
        if words[place - 2 : place + 1] != (_PUSH_VARIABLE, _CHOSEN, _SWITCH):
            continue
        for case in range(place + 2, min(place + 2 + 2 * words[place + 1], len(words) - 1), 2):
            # A jump counts from its own place, in bytes.
            yield case + 1 + words[case + 1] // 2, words[case]


def _find_script(words: tuple[int, ...], place: int) -> int:
    """Return the number of the script that a place lies in; the first word is the number of their beginnings."""
    beginnings = words[1 : words[0]] if words else ()
    return max((number for number, begin in enumerate(beginnings) if begin <= place), default=0)


def _make_episodes(
    archive: Archive, texts: Sequence[bytes], group: str, lines: Sequence[Line]
) -> Iterator[Episode | Skipped]:
    parts = ((line.speaker, _make_part(archive, texts, line.number)) for line in lines)
    name = f"{group}/{lines[0].place}"
    for built in cut_lines(parts, f"steel_sky {name}"):
        yield built if isinstance(built, Skipped) else _make_episode(name, group, built)


def _make_part(archive: Archive, texts: Sequence[bytes], number: int) -> Part | Skipped:
    item = f"steel_sky line {number:#x}"
    section, index = number >> 12, number & 0xFFF
    if section >= len(texts):
        return Skipped(item, "missing_text", f"there are {len(texts)} files of texts, from 0; this is of {section}.")
    clip = _FIRST_CLIP + _CLIPS_BEFORE[section] + index
    if clip not in archive:
        return Skipped(item, "missing_audio", f"the archive has no clip {clip}.")
    try:
        words, data = read_text(texts[section], index), archive.read(clip)
    except (struct.error, IndexError, ValueError) as error:
        return Skipped(item, "bad_entry", f"its words or its clip are damaged: {error}.")
    if not words.strip():
        return Skipped(item, "missing_text", "it has no words; a turn needs its words.")
    reference = make_reference("steel_sky", _ARCHIVE, str(clip))
    return Part(write_small(words), wrap_8_bit(data, _RATE_HZ), ref=reference)


def read_text(texts: bytes, index: int) -> str:
    """Return a line of a file of texts.

    Raises:
        IndexError: It is not within the file.
        struct.error: The file ends in its sizes.
    """
    sizes, letters = struct.unpack_from("<2H", texts)
    if index >= letters - sizes:
        raise IndexError(f"there are {letters - sizes} lines, not {index + 1}")
    block, rest = divmod(index, 32)
    place = sum(struct.unpack_from(f"<{block}H", texts, 4))
    for size in texts[sizes + 32 * block : sizes + index]:
        place += (size & 0x7F) << 3 if size & 0x80 else size
    first = 8 * letters + 2 * place
    bits = ((texts[bit >> 3] >> (7 - (bit & 7))) & 1 for bit in range(first, 8 * len(texts)))
    return "".join(takewhile(lambda letter: letter != "\0", _decode(bits)))


def _decode(bits: Iterator[int]) -> Iterator[str]:
    node = tree = _parse_tree(iter(_TREE))
    for bit in bits:
        branch = node[bit]
        node = branch
        if isinstance(branch, str):
            yield branch
            node = tree


def _parse_tree(nodes: Iterator[str]) -> Tree:
    node = next(nodes)
    return (_parse_tree(nodes), _parse_tree(nodes)) if node == "|" else node


def write_small(words: str) -> str:
    """Return words without the capitals that stand for emphasis."""
    return capitalise_sentences(re.sub(r"[A-Z][A-Z'-]*[A-Z]\b", lambda word: word[0].lower(), words))


_make_episode = partial(
    make_acted_episode, "steel_sky", license="LicenseRef-Beneath-a-Steel-Sky", native_coding="pcm_u8_11k"
)
