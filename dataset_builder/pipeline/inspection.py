"""Find unusable recordings, and usable ones that the report should note."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sdiareward.audio_sdiareward import AudioError, is_silent, open_for_one_pass
from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, compare_spans


_CLIPPING_LEVEL, _CLIPPING_RUN_SAMPLES, _CLIPPED_SHARE = 0.999, 4, 0.001
_USUAL_CHANNELS, _USUAL_RATE = 2, 48_000


class SilentAudioError(AudioError):
    """Raised for a silent recording."""


def require_sound(array: np.ndarray, label: str) -> np.ndarray:
    """Return `array`; raise if no sample reaches -70 dBFS."""
    if is_silent(array):
        peak = float(np.abs(array).max(initial=0.0))
        raise SilentAudioError(f"{label}: silent (peak {peak:.1e} of full scale); fetch it again.")
    return array


def measure_clipped_share(array: np.ndarray) -> float:
    """Return the share of samples in runs of four or more at full scale."""
    full = np.abs(array) >= _CLIPPING_LEVEL
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    return float(lengths[lengths >= _CLIPPING_RUN_SAMPLES].sum() / max(len(array), 1))


def inspect_episode(episode: Episode) -> Iterator[Skipped]:
    """Yield a note on each unusual recording that was used, and on each overlapping turn."""
    found = [
        (position, "overlap", f"overlaps turn {other} by {shared:.0%} of the shorter; used.")
        for position, other, shared, _ in compare_spans(episode)
        if shared > 0.01
    ]
    parts: dict[str | None, tuple[int, Part]] = {}
    for position, turn in enumerate(episode.turns):
        for part in turn.parts:
            parts.setdefault(part.audio, (position, part))
    for position, part in parts.values():
        found += [(position, *note) for note in (_find_unusual(part) if part.audio else ())]
    for position, kind, reason in found:
        label = f"{episode.source} {episode.name}, turn {position}"
        yield Skipped(label, kind, f"{label}: {reason}")


def _find_unusual(part: Part) -> Iterator[tuple[str, str]]:
    import soundfile

    try:
        with open_for_one_pass(part.audio) as file:
            rate, channels, subtype = file.samplerate, file.channels, file.subtype
            # The longest turn: only the beginning of a long recording is inspected.
            array = file.read(60 * rate, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError:
        return  # Another decoder reads it and reports problems.
    if subtype in ("PCM_U8", "PCM_S8"):
        yield "eight_bit", "has 8 bits per sample, so the format limits its noise floor; used."
    if channels > _USUAL_CHANNELS:
        yield "many_channels", f"has {channels} channels; their average is used."
    if rate > _USUAL_RATE:
        yield "high_rate", f"is sampled at {rate} Hz; resampled to 16,000 Hz."
    if (share := max(measure_clipped_share(channel) for channel in array.T)) > _CLIPPED_SHARE:
        yield "clipping", f"is clipped in {share:.1%} of its samples; used."
