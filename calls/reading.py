"""Read a recorded call: its turns, in windows that can be scored, and its timing."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sdiareward.audio_sdiareward import MIN_SAMPLES, SAMPLING_RATE, Clip
from sdiareward.chat_sdiareward import Dialogue, DialogueError, Turn
from sdiareward.common.files import write_file

from .recordings import ASSISTANT, USER, CallError, CallFiles, Channels, Form, UserChannel, list_calls, read_channels
from .segment_files import read_segments
from .speech import MONO, find_speech, measure_levels
from .turns import CallRules, Segment, Turns, form_turns, make_windows, measure_timing


# The longest turn that a model can hear.
_LONGEST_TURN_S = 60.0
# Larger overlaps of turns in a mono recording are reported.
_SHARED = 0.1
# A channel that is this much quieter between turns than the other is synthetic.
_FLOORS_APART_DB, _LEAST_QUIET = 30.0, 20
_MOST_NOTICES = 4


@dataclass(frozen=True)
class CallSettings:
    """How calls are found and read.

    Args:
        form (`"turns"` or `"call"`, *optional*): How to read two recordings of equal length; by default as a call.
        user_channel (`"left"` or `"right"`, *optional*): The user's channel in a stereo file; left is assumed.
        user, assistant (`str`, *optional*): Names of the speakers in segment files or in TurnBench.
        rules (`CallRules`): What counts as a turn, and the number of turns per window.
    """

    form: Form | None = None
    user_channel: UserChannel | None = None
    user: str | None = None
    assistant: str | None = None
    rules: CallRules = field(default_factory=CallRules)


# The default.
CALLS = CallSettings()


@dataclass(frozen=True)
class Call:
    """A call: its turns, windows that can be scored, timing, and notices about how it was read."""

    files: CallFiles
    settings: CallSettings
    turns: Turns
    windows: list[list[Segment]]
    notices: list[str]
    rate: int  # Lowest sampling rate of its files, in Hz.

    @property
    def timing(self) -> dict[str, float | int | None]:
        return measure_timing([self.turns], self.settings.rules)

    def resize(self, size: int) -> Call:
        """Return the call with another number of turns per window."""
        return replace(self, windows=make_windows(self.turns.turns, size))

    def list_windows(self) -> list[str]:
        """Return the names of the windows, such as `call7#2` for the second one of `call7`."""
        return [f"{self.files.name}#{number}" for number in range(1, len(self.windows) + 1)]

    def read_window(self, number: int) -> Dialogue:
        """Read the audio of a window; each turn is its speaker's channel, unedited, from first to last word."""
        channels = read_channels(self.files, self.settings.user_channel)
        turns = [(each, encode_turn(each, channels, "WAV", "FLOAT")) for each in self.windows[number]]
        return Dialogue(
            tuple(Turn(turn.role, turn.text, Clip({"bytes": sound, "path": None})) for turn, sound in turns)
        )

    def write_turns(self, folder: Path) -> None:
        """Write each window as a JSON dialogue, and the turns as FLAC."""
        channels, place = read_channels(self.files, self.settings.user_channel), self.files.name.replace("/", "_")
        names = {turn: f"{place}/{number:03}_{turn.role}.flac" for number, turn in enumerate(self.turns.turns)}
        (folder / place).mkdir(parents=True, exist_ok=True)
        for turn, name in names.items():
            write_file(folder / name, encode_turn(turn, channels, "FLAC", "PCM_24"))
        for number, window in enumerate(self.windows, start=1):
            turns = [{"role": turn.role, "text": turn.text, "audio": names[turn]} for turn in window]
            write_file(folder / f"{place}#{number}.json", json.dumps(turns, indent=2, ensure_ascii=False) + "\n")


@dataclass
class Windows(Mapping[str, Dialogue]):
    """The windows of calls as dialogues, by name; each is read on access."""

    calls: dict[str, Call]

    def __getitem__(self, name: str) -> Dialogue:
        call, _, number = name.rpartition("#")
        return self.calls[call].read_window(int(number) - 1)

    def __iter__(self) -> Iterator[str]:
        return (name for call in self.calls.values() for name in call.list_windows())

    def __len__(self) -> int:
        return sum(len(call.windows) for call in self.calls.values())


def read_calls(found: Sequence[CallFiles], settings: CallSettings = CallSettings()) -> tuple[Windows, dict[str, str]]:
    """Read calls, with a progress bar; also return the reasons for unusable calls, by name."""
    from tqdm.auto import tqdm

    calls, skipped = dict[str, Call](), dict[str, str]()
    for files in tqdm(found, unit="call", desc="reading calls", disable=len(found) < 2):
        try:
            if files.name in calls:
                raise CallError(f"{files.label}: another call is also named {files.name}; rename one.")
            calls[files.name] = read_call(files, settings)
        except ValueError as error:
            skipped[files.label if files.name in calls else files.name] = str(error)
    return Windows(calls), skipped


def count_notices(calls: Mapping[str, Call]) -> list[str]:
    """Return the notices on calls with counts, the most frequent first."""
    counts = Counter(notice for call in calls.values() for notice in call.notices)
    return [f"{count} of {len(calls)} calls: {notice}" for notice, count in counts.most_common(_MOST_NOTICES)]


def find_calls(path: Path, settings: CallSettings = CallSettings()) -> list[CallFiles]:
    """Return the calls of a recording, folder or table, without decoding them; see `recordings.list_calls`."""
    return list_calls(path, settings.form, settings.user)


def read_call(files: CallFiles, settings: CallSettings = CallSettings()) -> Call:
    """Read one call; segment files, or else the audio, decide who speaks when.

    Raises:
        CallError: A recording or a segment file cannot be used.
        DialogueError: The call has no turn of the assistant after one of the user.
    """
    channels = read_channels(files, settings.user_channel)
    if files.segments:
        segments = read_segments(files, channels.duration_s, settings.user, settings.assistant)
        found = [f"turns by {' and '.join(path.name for path in files.segments)}"]
    elif len(channels.samples) == 1:
        raise CallError(f"{channels.name}: has one channel; {MONO}.")
    else:
        spans, found = find_speech(channels)
        segments = [Segment(*span, side) for side in (USER, ASSISTANT) for span in spans[side]]
    turns = form_turns(segments, channels.duration_s, settings.rules)
    windows = make_windows(turns.turns, settings.rules.window)
    if not windows:
        raise DialogueError("has no turn of the assistant after one of the user.", name=channels.name)
    notices = [channels.reading, *found, *_describe(turns, windows, channels, settings.rules)]
    return Call(files, settings, turns, windows, notices, channels.rate)


def encode_turn(turn: Segment, channels: Channels, form: str, subtype: str) -> bytes:
    """Return the first 60 s of a turn as an encoded file."""
    import soundfile

    start, end = round(turn.start_s * SAMPLING_RATE), round(min(turn.length_s, _LONGEST_TURN_S) * SAMPLING_RATE)
    side = channels.samples[turn.channel if len(channels.samples) > 1 else 0]
    buffer = io.BytesIO()
    soundfile.write(buffer, side[start : start + max(end, MIN_SAMPLES)], SAMPLING_RATE, subtype, format=form)
    return buffer.getvalue()


def _describe(
    turns: Turns, windows: Sequence[Sequence[Segment]], channels: Channels, rules: CallRules
) -> Iterator[str]:
    """Yield notices that matter for reading a reward."""
    scored = {turn for window in windows for turn in window}
    if left_out := len(turns.turns) - len(scored):
        yield f"{left_out} turns are not scored: an opening turn of the assistant, or a turn without an answer"
    if len(windows[0]) < rules.window:
        yield f"short: {len(windows[0])} turns instead of {rules.window}; rewards depend on the number of turns"
    if long := sum(turn.length_s > _LONGEST_TURN_S for turn in scored):
        yield f"{long} turns are cut to {_LONGEST_TURN_S:g} s"
    if len(channels.samples) == 1:
        pairs = zip(turns.turns, turns.turns[1:], strict=False)
        if mixed := sum(before.end_s - after.start_s > _SHARED * after.length_s for before, after in pairs):
            yield f"{mixed} turns contain words of the other side: the recording is mono"
    elif _seems_swapped(turns, channels):
        yield "the user's channel is silent between words, the assistant's is not: are the channels swapped?"


def _seems_swapped(turns: Turns, channels: Channels) -> bool:
    """Return whether the user's channel has no noise floor but the assistant's has one."""
    hop = SAMPLING_RATE // 100
    is_quiet = np.ones(channels.samples.shape[1] // hop, bool)
    for piece in turns.pieces:
        is_quiet[max(0, int(piece.start_s * 100) - 20) : int(piece.end_s * 100) + 20] = False
    if is_quiet.sum() < _LEAST_QUIET:
        return False
    user_db, assistant_db = (float(np.median(measure_levels(side, hop)[is_quiet])) for side in channels.samples)
    return user_db < assistant_db - _FLOORS_APART_DB
