"""Find who speaks when in the two channels of a call.

Silero's sequence model finds the speech in each channel. Recorded channels often leak into each other; sound below the
measured leakage of the other channel is ignored. Borders are refined by level.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, is_silent
from sdiareward.common.errors import UserError

from .recordings import ROLES, CallError, Channels


# Silero at 16 kHz: samples per frame, context from the previous frame, frames per model call.
_FRAME, _CONTEXT, _MAX_FRAMES = 512, 64, 512
_STATE = (1, 1, 128)
# Speech begins at the first probability and ends after 128 ms below the second; shorter speech than 96 ms is dropped.
_BEGIN, _END, _SILENT_FRAMES, _LEAST_FRAMES = 0.3, 0.15, 4, 3
_HOP = SAMPLING_RATE // 100
_FLOOR_DB = -120.0
# Leakage: largest delay, level below the maximum that counts as loud, share of quiet frames, least number of frames.
_LAGS, _LOUD_DB, _QUIET_PERCENT, _LEAST_LOUD, _LEAKS = 11, 25.0, 40.0, 12, 0.6
# The gate's margin above the leakage, and its least distance below the other channel.
_GATE_DB, _LEAST_GATE_DB = 6.0, 3.0
# A border moves by up to 0.15 s, to the first and last 10 ms within 40 dB of the stretch; holes of 50 ms are bridged.
_REACH, _HOLE, _BELOW_PEAK_DB, _ABOVE_FLOOR_DB = 15, 5, 40.0, 10.0
MONO = "give two files (call_user.wav, call_assistant.wav), or who speaks when as .rttm, .json, .srt or .vtt"
# Beyond these limits, a channel contains the other one.
_SAME_CORRELATION, _SAME_LEVEL_DB, _MOST_LEAKAGE_DB, _NOTED_LEAKAGE_DB = 0.98, 6.0, -6.0, -20.0


class Span(NamedTuple):
    start_s: float
    end_s: float


class Leakage(NamedTuple):
    """The correlation of a channel's quiet frames with the other channel, and the level of the copy in dB."""

    correlation: float
    level_db: float


def measure_levels(samples: np.ndarray, hop: int) -> np.ndarray:
    """Return the level of each frame in dBFS."""
    num_frames = len(samples) // hop
    frames = samples[: num_frames * hop].reshape(num_frames, hop)
    return 10 * np.log10(np.square(frames, dtype=np.float64).mean(axis=1) + 1e-12)


def measure_leakage(own: np.ndarray, other: np.ndarray) -> Leakage:
    """Measure a copy of the other channel in this one, up to 0.35 s later, where only the other is loud."""
    own, other, best = measure_levels(own, _FRAME), measure_levels(other, _FRAME), Leakage(0.0, _FLOOR_DB)
    for lag in range(min(_LAGS, len(own))):
        heard, said = own[lag:], other[: len(other) - lag]
        is_loud = said > said.max() - _LOUD_DB
        heard, said = heard[is_loud], said[is_loud]
        is_low = heard - said <= np.percentile(heard - said, _QUIET_PERCENT)
        heard, said = heard[is_low], said[is_low]
        if len(heard) >= _LEAST_LOUD and min(heard.std(), said.std()) > 1e-6:
            correlation = float(np.corrcoef(heard, said)[0, 1])
            best = max(best, Leakage(correlation, float(np.median(heard - said))))
    return best


def find_speech(channels: Channels) -> tuple[list[list[Span]], list[str]]:
    """Return the stretches of speech of the user and the assistant, and notices on leakage.

    Raises:
        CallError: A channel has no speech, or both channels have the same audio.
    """
    user, assistant = channels.samples
    energies = float(np.dot(user, user)), float(np.dot(assistant, assistant))
    is_one_level = max(energies) < 10 ** (_SAME_LEVEL_DB / 10) * min(energies)
    if is_one_level and abs(float(np.dot(user, assistant))) > _SAME_CORRELATION * (energies[0] * energies[1]) ** 0.5:
        raise CallError(f"{channels.name}: both channels have the same audio: this is a mono recording; {MONO}.")
    found, notices = list[list[Span]](), list[str]()
    for side, (own, other) in enumerate(((user, assistant), (assistant, user))):
        leakage = measure_leakage(own, other)
        leaks = f"the {ROLES[side]}'s channel contains the other channel at {leakage.level_db:.0f} dB"
        if leakage.correlation >= _LEAKS and leakage.level_db > _MOST_LEAKAGE_DB:
            raise CallError(f"{channels.name}: {leaks}; record the channels separately, or give segments.")
        if leakage.correlation >= _LEAKS and leakage.level_db > _NOTED_LEAKAGE_DB:
            notices.append(f"{leaks}; short overlaps are uncertain")
        found.append([] if is_silent(own) else _find_stretches(own, other, leakage))
        if not found[-1]:
            remedy = "set --user_channel, or check the recording"
            raise CallError(f"{channels.name}: no speech in the {ROLES[side]}'s channel; {remedy}.")
    return found, notices


def _find_stretches(own: np.ndarray, other: np.ndarray, leakage: Leakage) -> list[Span]:
    probabilities, fine = compute_probabilities(own), measure_levels(own, _HOP)
    is_audible = np.ones(len(fine), bool)
    if leakage.correlation >= _LEAKS:
        gate_db = max(-leakage.level_db - _GATE_DB, _LEAST_GATE_DB)
        coarse = measure_levels(own, _FRAME)
        is_quiet = _widen(coarse, 3, 3) < _widen(measure_levels(other, _FRAME), 11, 2) - gate_db
        probabilities[: len(coarse)][is_quiet] = 0
        is_audible = _widen(fine, 9, 9) >= _widen(measure_levels(other, _HOP), 33, 6) - gate_db
    spans = []
    per_frame = _FRAME / _HOP
    floor_db = float(np.percentile(fine, 10)) + _ABOVE_FLOOR_DB if len(fine) else 0.0
    for first, stop in _iter_runs(probabilities):
        begin, end = int(first * per_frame), min(int(np.ceil(stop * per_frame)), len(fine))
        if begin < end:
            limit = max(fine[begin:end].max() - _BELOW_PEAK_DB, floor_db)
            # Only the neighbourhood is needed.
            spans.append(_refine(begin, end, is_audible, fine, limit))
    return spans


def _iter_runs(probabilities: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield runs of speech frames, `(first, stop)`."""
    start, stop = None, 0
    for index, probability in enumerate([*probabilities, *[0.0] * _SILENT_FRAMES]):
        if probability >= (_BEGIN if start is None else _END):
            start, stop = index if start is None else start, index + 1
        elif start is not None and index + 1 - stop >= _SILENT_FRAMES:
            if stop - start >= _LEAST_FRAMES:
                yield start, stop
            start = None


def _refine(begin: int, end: int, is_audible: np.ndarray, fine: np.ndarray, limit: float) -> Span:
    def is_heard(index: int) -> bool:
        return bool(is_audible[index] and fine[index] >= limit)

    first = next((index for index in range(begin, min(begin + _REACH, end)) if is_heard(index)), begin)
    last = next((index for index in range(end - 1, max(end - _REACH, first) - 1, -1) if is_heard(index)), end - 1)
    for index in range(first, max(begin - _REACH, 0) - 1, -1):
        first = index if is_heard(index) and first - index <= _HOLE else first
    for index in range(last, min(end + _REACH, len(fine))):
        last = index if is_heard(index) and index - last <= _HOLE else last
    return Span(first * _HOP / SAMPLING_RATE, (last + 1) * _HOP / SAMPLING_RATE)


def _widen(values: np.ndarray, before: int, after: int) -> np.ndarray:
    """Return the largest value of each neighbourhood."""
    padded = np.pad(values, (before, after), constant_values=_FLOOR_DB)
    widest: np.ndarray = np.lib.stride_tricks.sliding_window_view(padded, before + after + 1).max(axis=1)
    return widest


def compute_probabilities(samples: np.ndarray) -> np.ndarray:
    """Return the probability of speech in each 32 ms of a 16 kHz signal."""
    session, state = _load_silero(), [np.zeros(_STATE, np.float32)] * 2
    padded = np.pad(samples, (_CONTEXT, -len(samples) % _FRAME))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _CONTEXT + _FRAME)[::_FRAME]
    found = [np.zeros(0, np.float32)]
    for first in range(0, len(frames), _MAX_FRAMES):
        given = dict(zip(("input", "h", "c"), (frames[first : first + _MAX_FRAMES].copy(), *state), strict=True))
        probabilities, *state = session.run(None, given)
        found.append(probabilities)
    return np.concatenate(found)


@cache
def _load_silero() -> Any:
    """Load silero's sequence model from its file, because the package imports torch."""
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None or find_spec("onnxruntime") is None:
        raise UserError('calls need the extra calls: pip install "sdiareward[calls]", or give a file of segments.')
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    model = Path(spec.origin).parent / "data" / "silero_vad_16k_sequence.onnx"
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
