"""Channel matching: give the recorded and the synthetic side of a pair the same channel.

Without it the pairs are solved by their noise floor: a recording carries a room, a microphone and a codec that
synthetic speech lacks, and a summary of the spectrum tells them apart. Both sides get the same trimming, bandwidth,
speech level, noise and coding; before that, synthetic speech goes through the codings that the recording had already
been through.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample


_FRAME_SAMPLES = SAMPLING_RATE // 100
_TRIM_MARGIN_FRAMES = 5
_MU = 255.0
_AAC_DELAY_SAMPLES = 1024


@dataclass(frozen=True)
class ChannelSettings:
    """The channel that both sides of a pair are given. Recorded in every row.

    Args:
        trim_db (`float`): Cut leading and trailing frames more than this far below the loudest frame, in dB.
        bandwidth_hz (`float`): Keep frequencies below this, in Hz.
        level_dbfs (`float`): Level of the active speech, in dB relative to full scale.
        snr_db (`float`): Level of the speech above the white noise that is added, in dB.
        coding (`str`): Name in `CODINGS` of the coding that both sides go through last, or `"none"`.
    """

    trim_db: float = 35.0
    bandwidth_hz: float = 4000.0
    level_dbfs: float = -26.0
    snr_db: float = 20.0
    coding: str = "mulaw"

    def __post_init__(self) -> None:
        if self.coding != "none" and self.coding not in CODINGS:
            raise ValueError(f"channel coding is {self.coding!r}; it must be 'none' or one of {sorted(CODINGS)}.")
        if not 0 < self.bandwidth_hz <= SAMPLING_RATE / 2:
            raise ValueError(f"bandwidth_hz is {self.bandwidth_hz}; it must lie in (0, {SAMPLING_RATE // 2}].")

    def as_row(self) -> dict[str, Any]:
        """Return the value of a row's `channel` column."""
        return asdict(self)


def trim_silence(array: np.ndarray, trim_db: float) -> np.ndarray:
    """Cut the quiet frames before and after the speech, keeping 50 ms of margin.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): 16 kHz speech.
        trim_db (`float`): Frames of 10 ms more than this far below the loudest one count as quiet, in dB.

    Returns:
        `np.ndarray`: A slice of `array`; all of it when it is silent or shorter than a frame.
    """
    num_frames = len(array) // _FRAME_SAMPLES
    if num_frames == 0:
        return array
    power = np.square(array[: num_frames * _FRAME_SAMPLES].reshape(num_frames, -1)).mean(axis=1)
    loud = np.flatnonzero(power > power.max() * 10 ** (-trim_db / 10))
    if loud.size == 0:
        return array
    start = max(loud[0] - _TRIM_MARGIN_FRAMES, 0) * _FRAME_SAMPLES
    end = min(loud[-1] + 1 + _TRIM_MARGIN_FRAMES, num_frames + 1) * _FRAME_SAMPLES
    return array[start:end]


def match_channel(array: np.ndarray, settings: ChannelSettings, rng: np.random.Generator) -> np.ndarray:
    """Give one turn the channel of `settings`: bandwidth, level, noise, coding. It has been trimmed before.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): 16 kHz speech.
        settings (`ChannelSettings`): The channel.
        rng (`np.random.Generator`): Source of the noise.

    Returns:
        `np.ndarray` of about the same shape: 16 kHz, float32.
    """
    rate = round(2 * settings.bandwidth_hz)
    narrow = resample(array, SAMPLING_RATE, rate)
    level = 10 ** (settings.level_dbfs / 20)
    narrow = narrow * (level / max(_active_level(narrow), 1e-9))
    noise = rng.standard_normal(len(narrow), dtype=np.float32) * (level * 10 ** (-settings.snr_db / 20))
    wide = resample(np.clip(narrow + noise, -1.0, 1.0), rate)
    return wide if settings.coding == "none" else CODINGS[settings.coding](wide)


def _active_level(array: np.ndarray) -> float:
    """Root mean square of the louder half of the 20 ms frames: pauses do not count as speech."""
    size = max(len(array) // max(len(array) // 160, 1), 1)
    frames = array[: len(array) // size * size].reshape(-1, size)
    power = np.sort(np.square(frames).mean(axis=1))
    return math.sqrt(power[len(power) // 2 :].mean())


def code_mulaw(array: np.ndarray, num_bits: int = 8) -> np.ndarray:
    """Code 16 kHz speech as a telephone does: 8 kHz, mu-law, eight bits (G.711) or fewer."""
    narrow = np.clip(resample(array, SAMPLING_RATE, 8000), -1.0, 1.0)
    code = np.sign(narrow) * np.log1p(_MU * np.abs(narrow)) / np.log1p(_MU)
    steps = 2.0 ** (num_bits - 1) - 1
    code = np.round(code * steps) / steps
    decoded = np.sign(code) * np.expm1(np.abs(code) * np.log1p(_MU)) / _MU
    return resample(decoded.astype(np.float32), 8000)


def encode(
    array: np.ndarray,
    sampling_rate: int,
    format: str,
    subtype: str,
    compression_level: float | None,
    bitrate_mode: str | None = None,
) -> bytes:
    """Encode a mono array as an audio file in memory with libsndfile.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Signal in [-1, 1].
        sampling_rate (`int`): Its rate, in Hz.
        format (`str`): Name of a container that `soundfile` knows, for instance `"OGG"`.
        subtype (`str`): Name of its coding, for instance `"OPUS"`.
        compression_level (`float`, *optional*): 0 (largest) to 1 (smallest); None for a lossless format.
        bitrate_mode (`str`, *optional*): Of MP3: `"CONSTANT"`, `"AVERAGE"` or `"VARIABLE"`, the default.
    """
    import soundfile

    buffer = io.BytesIO()
    given = {"compression_level": compression_level, "bitrate_mode": bitrate_mode}
    options = {name: value for name, value in given.items() if value is not None}
    soundfile.write(buffer, np.clip(array, -1.0, 1.0), sampling_rate, format=format, subtype=subtype, **options)
    return buffer.getvalue()


def encode_flac(array: np.ndarray) -> bytes:
    """Encode 16 kHz speech as 16-bit FLAC, the coding of data sets."""
    return encode(array, SAMPLING_RATE, "FLAC", "PCM_16", None)


def encode_opus(array: np.ndarray) -> bytes:
    """Encode 16 kHz speech as OGG/Opus at about 24 kbit/s, the coding of the bundled sample."""
    return encode(array, SAMPLING_RATE, "OGG", "OPUS", 0.93)


def _opus(array: np.ndarray) -> np.ndarray:
    import soundfile

    return soundfile.read(io.BytesIO(encode_opus(array)), dtype="float32")[0]


def _mp3_11k(array: np.ndarray) -> np.ndarray:
    """MPEG-2.5 layer III at 11,025 Hz, the coding of Flight of the Amazon Queen."""
    import soundfile

    data = encode(resample(array, SAMPLING_RATE, 11_025), 11_025, "MP3", "MPEG_LAYER_III", 0.7)
    decoded, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    return resample(decoded, rate)


def _vorbis_22k(array: np.ndarray) -> np.ndarray:
    """OGG/Vorbis at 22,050 Hz, the coding of Fish Fillets."""
    import soundfile

    data = encode(resample(array, SAMPLING_RATE, 22_050), 22_050, "OGG", "VORBIS", 0.3)
    decoded, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    return resample(decoded, rate)


def _aac(array: np.ndarray) -> np.ndarray:
    """AAC at 48 kHz and 128 kbit/s, as video clips carry it (MELD)."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="adts") as container:
        stream = container.add_stream("aac", rate=48_000, layout="mono", bit_rate=128_000)
        wide = np.ascontiguousarray(resample(array, SAMPLING_RATE, 48_000)[None])
        frame = av.AudioFrame.from_ndarray(wide, format="fltp", layout="mono")
        frame.sample_rate = 48_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    buffer.seek(0)
    with av.open(buffer, "r") as coded:
        decoded = np.concatenate([frame.to_ndarray()[0] for frame in coded.decode(audio=0)])
    # The bare stream does not say that the encoder begins with a block of its own.
    start = min(_AAC_DELAY_SAMPLES, len(decoded))
    return resample(decoded[start:], 48_000)[: len(array)]


# 16 kHz in, 16 kHz out.
CODINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "aac": _aac,
    "mp3_11k": _mp3_11k,
    "mulaw": code_mulaw,
    "opus": _opus,
    "vorbis_22k": _vorbis_22k,
}
