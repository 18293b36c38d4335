r"""Flight of the Amazon Queen: acted English dialogue of a 1995 adventure game.

    apt-get install flight-of-the-amazon-queen
    python -m benchmarks.open_recordings.amazon_queen \
        /usr/share/scummvm/flight-of-the-amazon-queen/queen.1c runs/audio/amazon_queen

Some forty characters are spoken by professional actors; about a thousand exchanges (a line of the player and its
answer) are complete in text and sound. Free to distribute and modify with its readme and notices, not to be sold on
its own; copyright 1995 John Passfield and Steven Stamatiadis. The recordings are MP3 at 11,025 Hz with room noise.

Layout of the file (integers big-endian): `QTBL`, a version string, at 0x0D the number of entries, from 0x0F entries of
21 bytes (name 12, bundle 1, offset 4, size 4). A `.DOG` entry holds the strings of one conversation; `*XX` in a string
is a stage command that ends a part, and part k of string `id` of conversation `KK` is the clip `KK` + id as four
hexadecimal digits + `J` (player) or `P` (person) + k + `.SB`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from sdiareward.dataset_builder.episodes import Part, Turn

from .folders import Dialogue, run


_COMMAND = re.compile(r"\*(?:XY\d\d\([^)]*\)|[0-9A-Z]{2})")
_DOG_WRAPPER_BYTES = 20
_DOG_HEADER_BYTES = 32
_BYTES_PER_LEVEL = 96
_EXCHANGES_PER_DIALOGUE = 3


def read_dialogues(path: Path) -> Iterator[Dialogue]:
    """Yield up to three consecutive exchanges of one conversation; an exchange needs all of its clips."""
    archive = _read_archive(path)
    for name in sorted(name for name in archive if name.endswith(".DOG")):
        exchanges = list(_read_exchanges(archive[name], archive))
        for start in range(0, len(exchanges), _EXCHANGES_PER_DIALOGUE):
            chosen = exchanges[start : start + _EXCHANGES_PER_DIALOGUE]
            yield Dialogue(f"{name}/{start}", name, [turn for exchange in chosen for turn in exchange])


def _read_archive(path: Path) -> dict[str, bytes]:
    blob = path.read_bytes()
    (num_entries,) = struct.unpack_from(">H", blob, 0x0D)
    entries = [struct.unpack_from(">12sBII", blob, 0x0F + 21 * index) for index in range(num_entries)]
    return {name.split(b"\0")[0].decode("latin-1"): blob[start : start + size] for name, _, start, size in entries}


def _read_exchanges(entry: bytes, archive: Mapping[str, bytes]) -> Iterator[tuple[Turn, Turn]]:
    body = entry[_DOG_WRAPPER_BYTES:]
    levels, _, key, num_player, num_person = struct.unpack_from(">5h", body)
    player_start = _DOG_HEADER_BYTES + _BYTES_PER_LEVEL * abs(levels)
    header = struct.unpack_from(f">{_DOG_HEADER_BYTES // 2}H", body)
    person_start = next(offset for offset in header if player_start < offset < len(body))
    answers = dict(_read_strings(body, person_start, num_person))
    for string_id, line in _read_strings(body, player_start, num_player):
        prefix = f"{key:02d}{string_id & 0xFFFF:04X}"
        sides = [_split_clips(line, f"{prefix}J"), _split_clips(answers.get(string_id, ""), f"{prefix}P")]
        if all(sides) and all(archive.get(clip) for side in sides for clip, _ in side):
            player, person = (tuple(Part(text, archive[clip]) for clip, text in side) for side in sides)
            yield Turn("user", player), Turn("assistant", person)


def _read_strings(body: bytes, position: int, count: int) -> Iterator[tuple[int, str]]:
    for _ in range(count):
        _, string_id, length = struct.unpack_from(">hhB", body, position)
        position += 5
        if length:
            yield string_id, body[position : position + length].decode("latin-1")
            position = -(-(position + length) // 4) * 4


def _split_clips(string: str, prefix: str) -> list[tuple[str, str]]:
    """Split a string at its commands into `(clip, words)`. A part without words has no clip but keeps its number."""
    return [(f"{prefix}{k}.SB", text.strip()) for k, text in enumerate(_COMMAND.split(string), 1) if text.strip()]


def main() -> None:
    run(
        "amazon_queen",
        read_dialogues,
        language="en",
        license="LicenseRef-Flight-of-the-Amazon-Queen",
        subset="semi_wild",
        native_coding=["mp3_11k"],
    )


if __name__ == "__main__":
    main()
