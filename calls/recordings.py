"""Find recordings of calls and read their two channels: one stereo file, or one file per side.

The two files of a call share a clock: they begin and end together. Their names differ only in a role word between
separators: `call_user.wav` and `call_assistant.wav`, `input.wav` and `output.wav`, `a.wav` and `b.wav`.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sdiareward.audio_sdiareward import MAX_AMPLITUDE, SAMPLING_RATE, AudioError, audio_duration_s, open_encoded
from sdiareward.common.errors import UserError


USER, ASSISTANT = 0, 1
ROLES = ("user", "assistant")
UserChannel = Literal["left", "right"]
Form = Literal["turns", "call"]
CALL_SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3")
SEGMENT_SUFFIXES = (".rttm", ".json", ".srt", ".vtt")
_WORDS = (
    ("user", "caller", "customer", "human", "input", "a", "speaker_1"),
    ("assistant", "agent", "bot", "output", "b", "speaker_2"),
)
CHANNEL_OF = {word: channel for channel, words in enumerate(_WORDS) for word in words}
_ROLE = re.compile(rf"(?<![a-z0-9])({'|'.join(sorted(CHANNEL_OF, key=len, reverse=True))})(?![a-z0-9])")
# A mix of both sides; it is ignored if there is a file per side.
_MIX = re.compile(r"(?<![a-z0-9])(combined|merged|mixed|mix|conversation)(?![a-z0-9])")
_TURN = re.compile(r"(.*turn)?[ _.-]?\d+", re.IGNORECASE)
# Files whose lengths differ by less share a clock; a file longer than this is not a turn.
_CLOCK_S, _LONGEST_TURN_S = 0.02, 60.0
# TurnBench's columns.
_TABLE_COLUMNS = ("speaker_1_audio", "speaker_2_audio")


class CallError(UserError, ValueError):
    """Raised for a recording or segments that are not a call; the message names file and line."""


class Cell(NamedTuple):
    """A recording in a Parquet file."""

    file: Path
    row: int
    column: str

    @property
    def name(self) -> str:
        return f"{self.file.name}, row {self.row}, {self.column}"


@dataclass(frozen=True)
class CallFiles:
    """The files of one call: a stereo file, a file with segments, or one file per side."""

    name: str
    sources: tuple[Path | Cell, ...]  # One recording, or the user's and the assistant's.
    segments: tuple[Path, ...] = ()  # Who speaks when: one file, or one per side.
    ignored: tuple[str, ...] = ()  # Mixes of the same call.

    @property
    def label(self) -> str:
        return " and ".join(str(source) if isinstance(source, Path) else source.name for source in self.sources)


@dataclass(frozen=True, eq=False)
class Channels:
    """The audio of a call.

    Args:
        samples (`np.ndarray` of shape `(2, num_samples)`; a mono recording has `(1, num_samples)`): 16 kHz, float32,
            the user's channel first.
        name (`str`): Name of the recording in errors.
        reading (`str`): How the channels were assigned, for the output.
        rate (`int`): The lowest sampling rate of the files, in Hz.
    """

    samples: np.ndarray
    name: str
    reading: str
    rate: int

    @property
    def duration_s(self) -> float:
        return self.samples.shape[1] / SAMPLING_RATE


def is_mix(path: Path) -> bool:
    """Return whether a file name marks a mix of both sides."""
    return bool(_MIX.search(path.stem.lower())) and _find_role(path) is None


def _find_role(path: Path) -> tuple[str, int] | None:
    """Return a file name without its role word, and the channel of the role."""
    found = list(_ROLE.finditer(path.stem.lower()))
    if not found:
        return None
    start, end = found[-1].span()
    return f"{path.stem[:start]}*{path.stem[end:]}".lower(), CHANNEL_OF[found[-1][1]]


def list_calls(path: Path, form: Form | None = None, user: str | None = None) -> list[CallFiles]:
    """Return the calls in a recording, a folder with its subfolders, or a table with TurnBench's columns.

    Two files of a call have equal length. A stereo file is a call if its name has neither a role nor a turn number.
    `form` overrides both rules.
    """
    if form == "turns":
        return []
    if path.is_file():
        if path.suffix.lower() == ".parquet":
            return _list_rows(path, user)
        return [CallFiles(path.stem, (path,), _find_segments([path]))] if path.suffix.lower() in CALL_SUFFIXES else []
    found = list[CallFiles]()
    for folder in [path, *sorted(each for each in path.iterdir() if each.is_dir())] if path.is_dir() else []:
        if folder == path or not folder.name.startswith((".", "__")):
            inside = list(_list_folder(folder, "" if folder == path else f"{folder.name}/", form))
            is_alone = len(inside) == 1 and folder != path
            found += [replace(inside[0], name=folder.name)] if is_alone else inside
    return sorted(found, key=lambda call: call.name)


def _list_folder(folder: Path, prefix: str, form: Form | None) -> Iterator[CallFiles]:
    files = sorted(each for each in folder.iterdir() if each.suffix.lower() in CALL_SUFFIXES and each.name[0] != ".")
    mixes, sides = (list(filter(test, files)) for test in (is_mix, _find_role))
    if sides:
        pairs = pair_files(sides)
        if form == "call" or (2 * len(pairs) == len(sides) and all(map(has_one_clock, pairs.values()))):
            for name, pair in pairs.items():
                plain = f"{prefix}{re.sub(r'[^a-z0-9]*[*][^a-z0-9]*', '_', name).strip('_')}".rstrip("/")
                yield CallFiles(plain or folder.name, pair, _find_segments(pair), tuple(each.name for each in mixes))
    elif form == "call" or (any(map(_holds_call, files)) and not all(_TURN.fullmatch(each.stem) for each in files)):
        for file in files:
            yield CallFiles(f"{prefix}{file.stem}", (file,), _find_segments([file]))


def pair_files(files: Iterable[Path]) -> dict[str, tuple[Path, Path]]:
    """Return pairs of files, user and assistant, by the common name; their names differ only in the role word."""
    sides: dict[str, dict[int, Path]] = defaultdict(dict)
    for file in sorted(files):
        if found := _find_role(file):
            sides[found[0]].setdefault(found[1], file)
    return {name: (each[USER], each[ASSISTANT]) for name, each in sides.items() if len(each) == len(ROLES)}


def has_one_clock(pair: Iterable[Path]) -> bool:
    """Return whether two files have equal length, to 20 ms, or are both too long to be turns."""
    try:
        user_s, assistant_s = map(audio_duration_s, pair)
    except (AudioError, OSError):  # Reported when the file is decoded.
        return False
    return abs(user_s - assistant_s) <= _CLOCK_S or min(user_s, assistant_s) > _LONGEST_TURN_S


def _holds_call(file: Path) -> bool:
    import soundfile

    try:
        return bool(_find_segments([file])) or soundfile.info(str(file)).channels == len(ROLES)
    except soundfile.LibsndfileError:
        return False


def _find_segments(files: Iterable[Path]) -> tuple[Path, ...]:
    """Return the segment files beside recordings, if each has one."""
    found = [next(filter(Path.is_file, map(file.with_suffix, SEGMENT_SUFFIXES)), None) for file in files]
    return () if None in found else tuple(filter(None, found))


def _list_rows(table: Path, user: str | None) -> list[CallFiles]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = list[str]()
    with suppress(pa.ArrowInvalid):  # Reported when it is read as a table of dialogues.
        columns = pq.read_schema(table).names
    if not set(_TABLE_COLUMNS) <= set(columns):
        return []
    if user is None or f"{user}_audio" not in _TABLE_COLUMNS:
        raise CallError(f"{table}: has calls of speaker_1 and speaker_2; name the user with --user.")
    ordered = sorted(_TABLE_COLUMNS, key=lambda column: column != f"{user}_audio")
    found = pq.read_table(table, columns=["conversation_id"] if "conversation_id" in columns else [_TABLE_COLUMNS[0]])
    names = found["conversation_id"].to_pylist() if "conversation_id" in columns else range(len(found))
    return [CallFiles(str(name), tuple(Cell(table, row, each) for each in ordered)) for row, name in enumerate(names)]


def read_channels(files: CallFiles, user_channel: UserChannel | None = None) -> Channels:
    """Read a call at 16 kHz; the left channel of a stereo file is assumed to be the user's.

    Raises:
        CallError: A file cannot be decoded or has more than two channels, or two files are not one call.
    """
    paths = [source if isinstance(source, Path) else source.file for source in files.sources]
    return _read_channels(files, user_channel, tuple(path.stat().st_mtime_ns for path in paths))


# Windows of a call are read one by one; a comparison alternates between two systems.
@lru_cache(maxsize=2)
def _read_channels(files: CallFiles, user_channel: UserChannel | None, _stamps: tuple[int, ...]) -> Channels:
    sounds = [_decode(source) for source in files.sources]
    rate = min(rate for _, rate in sounds)
    if len(sounds) == 1:
        samples = sounds[0][0]
        if len(samples) > len(ROLES):
            raise CallError(f"{files.label}: has {len(samples)} channels; give the user's and the assistant's.")
        if len(samples) == 1:
            return Channels(samples, files.label, "one channel, cut by the segments", rate)
        if user_channel == "right":
            return Channels(samples[::-1], files.label, "left = assistant, right = user", rate)
        assumed = "" if user_channel else " (assumed; --user_channel right swaps them)"
        return Channels(samples, files.label, f"left = user, right = assistant{assumed}", rate)
    names = [source.name for source in files.sources]
    for name, (side, _) in zip(names, sounds, strict=True):
        if len(side) > 1:
            raise CallError(f"{name}: has {len(side)} channels; a file with one side of a call must be mono.")
    if len({rate for _, rate in sounds}) > 1:
        found = ", ".join(f"{name} has {rate} Hz" for name, (_, rate) in zip(names, sounds, strict=True))
        raise CallError(f"{found}; the two files of a call need the same rate.")
    lengths_s = [side.shape[1] / SAMPLING_RATE for side, _ in sounds]
    if abs(lengths_s[0] - lengths_s[1]) > _CLOCK_S:
        found = ", ".join(f"{name} lasts {length:.2f} s" for name, length in zip(names, lengths_s, strict=True))
        remedy = "the two files of a call must begin and end together: pad them, or give one stereo file"
        raise CallError(f"{found}; {remedy}.")
    reading = f"user = {names[USER]}, assistant = {names[ASSISTANT]}, on one clock"
    reading += f"; ignored: {', '.join(files.ignored)}" if files.ignored else ""
    num_samples = min(side.shape[1] for side, _ in sounds)
    return Channels(np.concatenate([side[:, :num_samples] for side, _ in sounds]), files.label, reading, rate)


def _decode(source: Path | Cell) -> tuple[np.ndarray, int]:
    """Decode a recording of any length to `(num_channels, num_samples)` at 16 kHz; return also its rate."""
    import pyarrow.dataset
    import soxr

    handle: Any = str(source)
    label = str(source)
    if isinstance(source, Cell):
        table = pyarrow.dataset.dataset(source.file).take([source.row], columns=[source.column])
        handle, label = io.BytesIO(table[source.column][0].as_py()["bytes"] or b""), source.name
    with open_encoded(handle, label) as file:
        rate, samples = file.samplerate, file.read(dtype="float32", always_2d=True)
    if not samples.size or not max(samples.max(), -samples.min()) <= MAX_AMPLITUDE:
        raise CallError(f"{label}: is empty, or has NaN or samples beyond full scale; export the recording again.")
    if rate != SAMPLING_RATE:
        samples = soxr.resample(samples, rate, SAMPLING_RATE, quality="HQ")
    return np.ascontiguousarray(samples.T), rate
