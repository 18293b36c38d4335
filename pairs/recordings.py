"""Join the turns of a dialogue to the one recording that a judge of single answers listens to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE


GAP_S = 1.0


def join_turns(clips: Sequence[np.ndarray], gap_s: float = GAP_S) -> np.ndarray:
    """Join clips with silence between them, as ChatReward joins question and answer (WavReward, section 3.2.3).

    Args:
        clips (`Sequence[np.ndarray]` of shape `(num_samples,)` each): Mono, 16 kHz.
        gap_s (`float`, *optional*, defaults to 1.0): Silence between two clips, in seconds.

    Returns:
        `np.ndarray` of shape `(num_samples,)`, float32.

    Raises:
        ValueError: There are no clips, or the gap is negative.
    """
    if not clips or gap_s < 0:
        raise ValueError(f"got {len(clips)} clips and a gap of {gap_s} s; give at least one clip and no negative gap.")
    silence = np.zeros(round(gap_s * SAMPLING_RATE), dtype=np.float32)
    parts = [part for clip in clips for part in (silence, np.asarray(clip, dtype=np.float32))]
    return np.concatenate(parts[1:])
