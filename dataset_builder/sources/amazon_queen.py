"""Flight of the Amazon Queen: acted English dialogue of a 1995 adventure game (semi-wild).

Origin: the talkie version of the game, some forty characters spoken by professional actors over their script.
Size: 6,745 clips; about a thousand exchanges (a line of the player and its answer) are complete in text and sound.
Language: en. Licence: free to distribute and modify with its readme and notices, not to be sold on its own; copyright
1995 John Passfield and Steven Stamatiadis. The recordings are MP3 at 11,025 Hz with room noise and leading silence.

How to obtain: `apt-get install flight-of-the-amazon-queen` (Debian main), which gives
`/usr/share/scummvm/flight-of-the-amazon-queen/queen.1c`; elsewhere the freeware release has the same file.

Layout of the file (integers big-endian): `QTBL`, a version string, at 0x0C a byte that is 1 for MP3, at 0x0D the
number of entries, from 0x0F entries of 21 bytes (name 12, bundle 1, offset 4, size 4). A `.DOG` entry holds the
strings of one conversation; `*XX` in a string is a stage command that ends a part, and part k of string `id` of
conversation `KK` is the clip `KK` + id as four hexadecimal digits + `J` (player) or `P` (person) + k + `.SB`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.pairs.schema import UNKNOWN

from ..references import make_reference


_ARCHIVE = "queen.1c"
DEFAULT_PATH = Path("/usr/share/scummvm/flight-of-the-amazon-queen") / _ARCHIVE
_COMMAND = re.compile(r"\*(?:XY\d\d\([^)]*\)|[0-9A-Z]{2})")
_DOG_WRAPPER_BYTES = 20
_DOG_HEADER_BYTES = 32
_BYTES_PER_LEVEL = 96
_EXCHANGES_PER_EPISODE = 3


class Conversation(NamedTuple):
    """The strings of one `.DOG` entry by id: the lines of the player and the answers."""

    key: int
    player: dict[int, str]
    person: dict[int, str]


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """Yield episodes of up to three consecutive exchanges of one conversation.

    Args:
        path (`Path`, *optional*): The file `queen.1c`, or the folder that holds it; Debian's place by default.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not the MP3 talkie version.
    """
    archive = _open_archive(path or DEFAULT_PATH)
    for name in sorted(name for name in archive if name.endswith(".DOG")):
        try:
            conversation = parse_conversation(archive[name])
        except (struct.error, StopIteration, IndexError) as error:
            yield Skipped(f"amazon_queen {name}", "bad_entry", f"not the strings of a conversation: {error!r}.")
            continue
        exchanges = []
        for exchange in _read_exchanges(conversation, archive):
            if isinstance(exchange, Skipped):
                yield exchange
            else:
                exchanges.append(exchange)
        for start in range(0, len(exchanges), _EXCHANGES_PER_EPISODE):
            yield _make_episode(name, start, exchanges[start : start + _EXCHANGES_PER_EPISODE])


def locate(root: Path, path: str, member: str | None = None) -> bytes:
    """Return a clip out of the archive, which is read once; see `sources.locate`."""
    if path != _ARCHIVE or not member:
        raise ValueError(f"reference amazon_queen:{path}#{member}: must read 'amazon_queen:{_ARCHIVE}#CLIP'.")
    archive = _open_archive(root)
    if not archive.get(member):
        raise FileNotFoundError(f"{root}: has no clip {member}; take the archive that the card names.")
    return archive[member]


def _make_episode(dog: str, start: int, exchanges: list[tuple[Turn, Turn]]) -> Episode:
    return Episode(
        name=f"{dog}/{start}",
        source="amazon_queen",
        subset="semi_wild",
        group=dog,
        turns=tuple(turn for exchange in exchanges for turn in exchange),
        primary=UNKNOWN,
        secondary=UNKNOWN,
        language="en",
        license="LicenseRef-Flight-of-the-Amazon-Queen",
        native_coding=("mp3_11k",),
    )


def _open_archive(path: Path) -> dict[str, bytes]:
    """Return the dialogue files and voice clips by name, from memory if the file is the one that was read last."""
    path = path / _ARCHIVE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found; apt-get install flight-of-the-amazon-queen, or give a path.")
    return _read_archive(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _read_archive(path: Path, _changed_ns: int) -> dict[str, bytes]:
    blob = path.read_bytes()
    if blob[:4] != b"QTBL" or blob[0x0C:0x0D] != b"\1":
        raise ValueError(f"{path}: begins with {blob[:4]!r}; the talkie version's MP3 archive (QTBL) is needed.")
    archive: dict[str, bytes] = {}
    bytes_left = len(blob)
    try:
        (num_entries,) = struct.unpack_from(">H", blob, 0x0D)
        for index in range(num_entries):
            raw_name, _, offset, size = struct.unpack_from(">12sBII", blob, 0x0F + 21 * index)
            name = raw_name.split(b"\0")[0].decode("latin-1")
            if name.endswith((".DOG", ".SB")):
                archive[name] = blob[offset : offset + size]
                # Entries that overlap could hold the file thousands of times.
                bytes_left -= len(archive[name])
                if bytes_left < 0:
                    raise ValueError(f"{path}: its entries overlap; take the archive that the card names.")
    except struct.error as error:
        raise ValueError(f"{path}: ends in its table of entries ({error}); get the file again.") from error
    return archive


def parse_conversation(entry: bytes) -> Conversation:
    """Read the strings of a `.DOG` entry."""
    body = entry[_DOG_WRAPPER_BYTES:]
    levels, _, key, num_player, num_person = struct.unpack_from(">5h", body)
    player_start = _DOG_HEADER_BYTES + _BYTES_PER_LEVEL * abs(levels)
    header = struct.unpack_from(f">{_DOG_HEADER_BYTES // 2}H", body)
    person_start = next(offset for offset in header if player_start < offset < len(body))
    player = _parse_strings(body, player_start, num_player)
    return Conversation(key, player, _parse_strings(body, person_start, num_person))


def _parse_strings(body: bytes, position: int, count: int) -> dict[int, str]:
    strings = {}
    for _ in range(count):
        _, string_id, length = struct.unpack_from(">hhB", body, position)
        position += 5
        if length:
            strings[string_id] = body[position : position + length].decode("latin-1")
            position = -(-(position + length) // 4) * 4
    return strings


def _read_exchanges(conversation: Conversation, archive: Mapping[str, bytes]) -> Iterator[tuple[Turn, Turn] | Skipped]:
    """Yield each line of the player with its answer, or which clip of them is missing."""
    for string_id, line in conversation.player.items():
        prefix = f"{conversation.key:02d}{string_id & 0xFFFF:04X}"
        sides = [_split_clips(line, f"{prefix}J"), _split_clips(conversation.person.get(string_id, ""), f"{prefix}P")]
        clips = [clip for side in sides for clip in side]
        if missing := [name for name, _ in clips if not archive.get(name)]:
            reason = f"the archive has no {', '.join(missing)}; a turn needs all of its clips."
            yield Skipped(f"amazon_queen {prefix}", "missing_audio", reason)
        elif all(sides):
            player, person = (tuple(_make_part(name, text, archive) for name, text in side) for side in sides)
            yield Turn("user", player), Turn("assistant", person)
        elif clips:
            yield Skipped(f"amazon_queen {prefix}", "no_answer", f"only one side speaks: {clips[0][1]!r}.")


def _split_clips(string: str, prefix: str) -> list[tuple[str, str]]:
    """Split a string at its commands into `(clip, words)`. A part without words has no clip but keeps its number."""
    return [(f"{prefix}{k}.SB", text.strip()) for k, text in enumerate(_COMMAND.split(string), 1) if text.strip()]


def _make_part(name: str, text: str, archive: Mapping[str, bytes]) -> Part:
    return Part(text, archive[name], ref=make_reference("amazon_queen", _ARCHIVE, name))
