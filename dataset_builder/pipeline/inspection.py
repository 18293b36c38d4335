"""Find what makes a recording unusable, and what is usable but noted in the report."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sdiareward.audio_sdiareward import AudioError, is_silent, open_for_one_pass
from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, compare_spans


_CLIPPING_LEVEL = 0.999
_CLIPPING_RUN_SAMPLES = 4
_CLIPPED_SHARE = 0.001
_EIGHT_BIT = ("PCM_U8", "PCM_S8")
_USUAL_CHANNELS = 2
_USUAL_RATE = 48_000


class SilentAudioError(AudioError):
    """Raised for a silent recording."""


def require_sound(array: np.ndarray, label: str) -> np.ndarray:
    """Return `array` unless no sample reaches -70 dB of full scale."""
    if is_silent(array):
        peak = float(np.abs(array).max(initial=0.0))
        raise SilentAudioError(
            f"{label}: is silent (loudest sample {peak:.1e} of full scale); record or fetch it again."
        )
    return array


def measure_clipped_share(array: np.ndarray) -> float:
    """Return the share of the samples in runs of four or more at full scale."""
    full = np.abs(array) >= _CLIPPING_LEVEL
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    return float(lengths[lengths >= _CLIPPING_RUN_SAMPLES].sum() / max(len(array), 1))


def inspect_episode(episode: Episode) -> Iterator[Skipped]:
    """Yield a note on each recording that was used although it is unusual, and on each turn that overlaps another."""
    for position, other, shared, _ in compare_spans(episode):
        if shared > 0.01:
            label = f"{episode.source} {episode.name}, turn {position}"
            reason = f"{label}: has {shared:.0%} of the shorter in common with turn {other}; used."
            yield Skipped(label, "overlap", reason)
    seen: set[str] = set()
    for position, turn in enumerate(episode.turns):
        for part in turn.parts:
            if part.audio is None or part.audio in seen:
                continue
            seen.add(part.audio)
            label = f"{episode.source} {episode.name}, turn {position}"
            yield from (Skipped(label, kind, f"{label}: {reason}") for kind, reason in _find_unusual(part))


def _find_unusual(part: Part) -> Iterator[tuple[str, str]]:
    import soundfile

    try:
        with open_for_one_pass(part.audio) as file:
            rate, channels, subtype = file.samplerate, file.channels, file.subtype
            # The longest turn: of a recording of hours only the beginning is inspected.
            array = file.read(60 * rate, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError:
        return  # Another decoder reads it, and reports its problems.
    if subtype in _EIGHT_BIT:
        yield "eight_bit", "has 8 bits a sample, so its noise floor is that of the format; used."
    if channels > _USUAL_CHANNELS:
        yield "many_channels", f"has {channels} channels; their average is used."
    if rate > _USUAL_RATE:
        yield "high_rate", f"is sampled at {rate} Hz; resampled to 16,000 Hz."
    if (share := max(measure_clipped_share(channel) for channel in array.T)) > _CLIPPED_SHARE:
        yield "clipping", f"is clipped in {share:.1%} of its samples; used."
