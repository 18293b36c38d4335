"""Recordings of turns: what is accepted, and how the turns of a dialogue become one recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, audio_duration_s, open_source, read_audio

from .schema import MAX_TURN_S


AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")
GAP_S = 1.0
# A minute of stereo at the highest usual rate; a few kilobytes of compressed silence can hold many times that.
_MAX_DECODED_VALUES = 60 * 2 * 192_000


def check_recording(source: Any, max_turn_s: float = MAX_TURN_S) -> None:
    """Raise unless a recording is short and, once decoded, small enough to be a turn; only its header is read.

    Args:
        source (`str`, `Path`, `bytes` or mapping): An encoded recording, as `audio_sdiareward.read_audio` takes it.
        max_turn_s (`float`, *optional*, defaults to 60.0): The longest that is accepted, in seconds.

    Raises:
        FileNotFoundError: The path does not exist.
        AudioError: The header cannot be read, or the recording is too long or too large.
    """
    import soundfile

    duration_s = audio_duration_s(source)
    handle, name, _, _ = open_source(source)
    if duration_s > max_turn_s:
        raise AudioError(f"{name}: lasts {duration_s:.1f} s; a turn lasts at most {max_turn_s:g} s, cut it.")
    info = soundfile.info(handle)
    if info.frames * info.channels > _MAX_DECODED_VALUES:
        raise AudioError(
            f"{name}: has {info.channels} channels at {info.samplerate} Hz; give one or two at 192 kHz or less."
        )


def read_recording(source: Any, name: str | None = None) -> np.ndarray:
    """Read the recording of a turn, once `check_recording` has accepted its header.

    Args:
        source (`str`, `Path`, `bytes` or mapping): As in `check_recording`.
        name (`str`, *optional*): What to call the recording in an error.

    Returns:
        `np.ndarray` of shape `(num_samples,)`: Mono, 16 kHz, float32.

    Raises:
        FileNotFoundError: The path does not exist.
        AudioError: The recording is not accepted or cannot be decoded.
    """
    check_recording(source)
    return read_audio(source, name=name)


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
