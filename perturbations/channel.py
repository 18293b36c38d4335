"""Codecs, and channel matching: give the recorded and the synthetic side of a pair the same channel.

Without it the pairs are solved by their noise floor: a recording has a room, a microphone and a codec that synthetic
speech lacks, and a summary of the spectrum separates them. Both sides get the same trimming, bandwidth, speech level,
noise and coding; before that, synthetic speech gets the codings of the recording.
"""

from __future__ import annotations

import io
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample

from .effects import Resample
from .transform import Transform


_MU = 255.0
_AAC_RATE = 48_000
_AAC_DELAY_SAMPLES = 1024


def encode(
    array: np.ndarray,
    sampling_rate: int,
    format: str,
    subtype: str,
    compression_level: float | None,
    bitrate_mode: str | None = None,
) -> bytes:
    """Encode a mono array, clipped to [-1, 1], in memory; `compression_level` is 0 (largest) to 1, or None."""
    import soundfile

    buffer = io.BytesIO()
    given = {"compression_level": compression_level, "bitrate_mode": bitrate_mode}
    options = {name: value for name, value in given.items() if value is not None}
    soundfile.write(buffer, np.clip(array, -1.0, 1.0), sampling_rate, format=format, subtype=subtype, **options)
    return buffer.getvalue()


def encode_flac(array: np.ndarray) -> bytes:
    """Encode 16 kHz speech as 16-bit FLAC, the coding of data sets."""
    return encode(array, SAMPLING_RATE, "FLAC", "PCM_16", None)


@dataclass(frozen=True)
class MuLaw(Transform):
    """Code as a telephone does: at 8 kHz by mu-law (G.711 has eight bits)."""

    num_bits: float = 8  # Per sample, rounded.
    clips_input: bool = False  # Clip to full scale at 16 kHz first, as a file would.

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        wide = resample(samples, sampling_rate)
        if self.clips_input:
            wide = np.clip(wide, -1.0, 1.0)
        narrow = np.clip(resample(wide, SAMPLING_RATE, 8000), -1.0, 1.0)
        code = np.sign(narrow) * np.log1p(_MU * np.abs(narrow)) / np.log1p(_MU)
        steps = 2.0 ** (round(self.num_bits) - 1) - 1
        code = np.round(code * steps) / steps
        decoded = np.sign(code) * np.expm1(np.abs(code) * np.log1p(_MU)) / _MU
        return resample(resample(decoded.astype(np.float32), 8000), SAMPLING_RATE, sampling_rate)


@dataclass(frozen=True)
class FileCodec(Transform):
    """Write a file with libsndfile and read it again; the length may change by a few samples."""

    format: str
    subtype: str
    rate_hz: int
    compression_level: float
    bitrate_mode: str | None = None

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        import soundfile

        array = resample(samples, sampling_rate, self.rate_hz)
        data = encode(array, self.rate_hz, self.format, self.subtype, self.compression_level, self.bitrate_mode)
        decoded, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        return resample(decoded, rate, sampling_rate)


@dataclass(frozen=True)
class EightBits(Transform):
    """Round samples to eight bits at another rate, after raising the peak to a level; the level is restored.

    Speech that is recorded for eight bits uses them. Without the level, rounding would drown a quieter voice.
    """

    rate_hz: int
    peak: float  # Of full scale.

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        array = resample(samples, sampling_rate, self.rate_hz)
        scale = 128 * self.peak / max(float(np.abs(array).max(initial=0.0)), 1e-9)
        return resample(np.round(array * scale) / scale, self.rate_hz, sampling_rate)


def make_mp3(kbit_s: float) -> FileCodec:
    # libsndfile's scale at this rate: 160 kbit/s at 0, 8 at 1. A constant rate would delay the sound.
    return FileCodec("MP3", "MPEG_LAYER_III", SAMPLING_RATE, (160 - kbit_s) / 152, "AVERAGE")


def make_opus(kbit_s: float) -> FileCodec:
    # libsndfile's scale: 256 kbit/s at 0, 6 at 1.
    return FileCodec("OGG", "OPUS", SAMPLING_RATE, (256 - kbit_s) / 250)


@dataclass(frozen=True)
class Aac(Transform):
    """Code as AAC at 48 kHz and 128 kbit/s, as video clips carry it (MELD)."""

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        import av

        buffer = io.BytesIO()
        with av.open(buffer, "w", format="adts") as container:
            stream = container.add_stream("aac", rate=_AAC_RATE, layout="mono", bit_rate=128_000)
            wide = np.ascontiguousarray(resample(samples, sampling_rate, _AAC_RATE)[None])
            frame = av.AudioFrame.from_ndarray(wide, format="fltp", layout="mono")
            frame.sample_rate = _AAC_RATE
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        buffer.seek(0)
        with av.open(buffer, "r") as coded:
            decoded = np.concatenate([frame.to_ndarray()[0] for frame in coded.decode(audio=0)])
        # The bare stream does not record that the encoder begins with a block of its own.
        start = min(_AAC_DELAY_SAMPLES, len(decoded))
        return resample(decoded[start:], _AAC_RATE, sampling_rate)[: len(samples)]


# The names that rows and settings use for codings.
CODINGS: dict[str, Transform] = {
    "aac": Aac(),
    # MPEG-2.5 layer III, the coding of Flight of the Amazon Queen.
    "mp3_11k": FileCodec("MP3", "MPEG_LAYER_III", 11_025, 0.7),
    "mulaw": MuLaw(),
    # About 24 kbit/s on libsndfile's scale.
    "opus": FileCodec("OGG", "OPUS", SAMPLING_RATE, 0.93),
    # The sampling rate of Asterisk's prompts.
    "pcm_8k": Resample(8000),
    # Raw samples of old games, with the loudest sample of the median clip of Drascula.
    "pcm_u8_11k": EightBits(11_025, 0.7),
    "vorbis_22k": FileCodec("OGG", "VORBIS", 22_050, 0.3),
}


@dataclass(frozen=True)
class ChannelSettings(Transform):
    """The channel that both sides of a pair get. Recorded in every row."""

    trim_db: float = 35.0  # Below the loudest frame; applied by the builder to each part of a turn.
    bandwidth_hz: float = 4000.0  # Frequencies below are kept.
    level_dbfs: float = -26.0  # Of the active speech.
    snr_db: float = 20.0  # Of the speech over the added white noise.
    coding: str = "mulaw"  # Name in `CODINGS`, or `"none"`; applied last.

    def __post_init__(self) -> None:
        if self.coding != "none" and self.coding not in CODINGS:
            raise ValueError(f"channel coding is {self.coding!r}; it must be 'none' or one of {sorted(CODINGS)}.")
        if not 0 < self.bandwidth_hz <= SAMPLING_RATE / 2:
            raise ValueError(f"bandwidth_hz is {self.bandwidth_hz}; it must lie in (0, {SAMPLING_RATE // 2}].")

    def as_row(self) -> dict[str, Any]:
        return asdict(self)

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        rate = round(2 * self.bandwidth_hz)
        narrow = resample(samples, sampling_rate, rate)
        level = 10 ** (self.level_dbfs / 20)
        narrow = narrow * (level / max(_measure_active_level(narrow), 1e-9))
        noise = rng.standard_normal(len(narrow), dtype=np.float32) * (level * 10 ** (-self.snr_db / 20))
        wide = resample(np.clip(narrow + noise, -1.0, 1.0), rate, sampling_rate)
        return wide if self.coding == "none" else CODINGS[self.coding](wide, sampling_rate)


def _measure_active_level(array: np.ndarray) -> float:
    """Return the root mean square of the louder half of the 20 ms frames: pauses do not count as speech."""
    size = max(len(array) // max(len(array) // 160, 1), 1)
    frames = array[: len(array) // size * size].reshape(-1, size)
    power = np.sort(np.square(frames).mean(axis=1))
    return math.sqrt(power[len(power) // 2 :].mean())
