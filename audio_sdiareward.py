"""Read recordings as mono float32 arrays, without torch.

The one place where audio enters the package: the processor reads turns through it and so does `dataset_builder`, which
therefore imports neither torch nor the model. The file travels to the Hub beside the processor that imports it.

Decoding is libsndfile's (WAV, FLAC, OGG/Vorbis, OGG/Opus, MP3), resampling is soxr's at its high quality setting, as
the published model's inputs were.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


SAMPLING_RATE = 16_000
# The audio tower halves the frames twice: two frames (320 samples) leave no token, one sample more leaves one.
MIN_SAMPLES = 321
# Beyond a truncation point the resampler still looks at its neighbourhood.
_RESAMPLER_MARGIN_S = 0.1
# What libsndfile says without the name of the file, which for bytes would be an address in memory.
_UNDECODABLE = "cannot be decoded as audio ({}); use WAV, FLAC, OGG or MP3."


class AudioError(ValueError):
    """Raised for audio that exists but cannot be judged: undecodable, empty, too short, or not finite."""


def resample(array: np.ndarray, sampling_rate: int, target_sampling_rate: int = SAMPLING_RATE) -> np.ndarray:
    """Resample a mono array with soxr.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Mono signal.
        sampling_rate (`int`): Rate of `array`, in Hz.
        target_sampling_rate (`int`, *optional*, defaults to 16000): Rate of the result, in Hz.

    Returns:
        `np.ndarray` of shape `(ceil(num_samples * target / rate),)`, float32.
    """
    if sampling_rate == target_sampling_rate:
        return np.ascontiguousarray(array, dtype=np.float32)
    import soxr

    return soxr.resample(np.asarray(array, dtype=np.float32), sampling_rate, target_sampling_rate, quality="HQ")


def audio_duration_s(source: Any) -> float:
    """Return the duration of a recording in seconds, from its header where there is one.

    Args:
        source: Anything `read_audio` takes.

    Raises:
        FileNotFoundError: The path does not exist.
        AudioError: The header cannot be read.
    """
    handle, name, array, rate = open_source(source)
    if array is not None:
        return array.shape[-1] / rate
    import soundfile

    try:
        info = soundfile.info(handle)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{name}: {_UNDECODABLE.format(error.error_string)}") from error
    return info.frames / info.samplerate


def read_audio(
    source: Any,
    *,
    sampling_rate: int = SAMPLING_RATE,
    max_duration_s: float | None = None,
    name: str | None = None,
) -> np.ndarray:
    """Read one recording as a mono float32 array at `sampling_rate`.

    Channels are averaged. Longer recordings are cut to their first `max_duration_s` seconds before they are decoded
    whole, so a long file costs no more than its beginning.

    Args:
        source (`str`, `Path`, `bytes`, mapping or `np.ndarray`):
            A file; an encoded file in memory; `{"bytes", "path"}` as `datasets.Audio(decode=False)` gives it;
            `{"array", "sampling_rate"}`; or a mono array that already has `sampling_rate`.
        sampling_rate (`int`, *optional*, defaults to 16000): Rate of the result, in Hz.
        max_duration_s (`float`, *optional*): Cut to this many seconds; `None` keeps everything.
        name (`str`, *optional*): What to call the recording in an error, for instance `"row 3, chosen turn 2"`.

    Returns:
        `np.ndarray` of shape `(num_samples,)`, float32, finite, at least `MIN_SAMPLES` long.

    Raises:
        FileNotFoundError: The path does not exist.
        AudioError: The recording is undecodable, empty, shorter than one audio token, or holds NaN or infinity.
        TypeError: `source` is none of the accepted types.
    """
    handle, source_name, array, rate = open_source(source, sampling_rate)
    label = name or source_name
    if array is None:
        array, rate = _decode(handle, label, max_duration_s)
    elif max_duration_s is not None:
        array = array[..., : math.ceil((max_duration_s + _RESAMPLER_MARGIN_S) * rate)]
    if array.ndim == 2:
        array = array.mean(axis=0)
    if array.size == 0:
        raise AudioError(f"{label}: holds no samples; a turn needs at least {MIN_SAMPLES} samples at 16 kHz.")
    if not np.isfinite(array).all():
        raise AudioError(f"{label}: holds NaN or infinite samples; export the recording again.")
    array = resample(array, rate, sampling_rate)
    if max_duration_s is not None:
        array = array[: round(max_duration_s * sampling_rate)]
    if array.size * SAMPLING_RATE < MIN_SAMPLES * sampling_rate:
        raise AudioError(
            f"{label}: lasts {array.size / sampling_rate * 1000:.1f} ms; more than "
            f"{(MIN_SAMPLES - 1) / SAMPLING_RATE * 1000:.0f} ms is needed for one audio token."
        )
    return array


def open_source(source: Any, sampling_rate: int = SAMPLING_RATE) -> tuple[Any, str, np.ndarray | None, int]:
    """Say what a recording is given as, without decoding it.

    Args:
        source: Anything `read_audio` takes.
        sampling_rate (`int`, *optional*, defaults to 16000): Rate of an array that comes without one, in Hz.

    Returns:
        `tuple`: A path or a file in memory (None for samples), what to call it, samples (None for what still has to be
        decoded), and their rate.

    Raises:
        FileNotFoundError: The path does not exist.
        TypeError: `source` is none of the accepted types.
    """
    if isinstance(source, np.ndarray):
        if source.ndim != 1:
            raise TypeError(f"an audio array must be mono, shape (num_samples,); got shape {source.shape}.")
        return None, "audio array", source, sampling_rate
    if isinstance(source, Mapping):
        if source.get("array") is not None:
            if not source.get("sampling_rate"):
                raise TypeError("an audio mapping with 'array' needs 'sampling_rate' in Hz.")
            array = np.asarray(source["array"], dtype=np.float32)
            return None, str(source.get("path") or "audio array"), array, int(source["sampling_rate"])
        if source.get("bytes") is not None:
            return io.BytesIO(source["bytes"]), str(source.get("path") or "audio bytes"), None, 0
        source = source.get("path")
    if isinstance(source, bytes):
        return io.BytesIO(source), "audio bytes", None, 0
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such audio file.")
        return str(path), str(path), None, 0
    raise TypeError(
        "audio must be a path, bytes, an array or a mapping with 'bytes', 'path' or 'array'; "
        f"got {type(source).__name__}."
    )


def _decode(handle: Any, label: str, max_duration_s: float | None) -> tuple[np.ndarray, int]:
    """Decode to `(num_channels, num_samples)` at the file's own rate."""
    import soundfile

    try:
        with soundfile.SoundFile(handle) as file:
            rate = file.samplerate
            limit = -1 if max_duration_s is None else math.ceil((max_duration_s + _RESAMPLER_MARGIN_S) * rate)
            return file.read(limit, dtype="float32", always_2d=True).T, rate
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{label}: {_UNDECODABLE.format(error.error_string)}") from error
