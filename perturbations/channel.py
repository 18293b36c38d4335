"""Codecs, and channel matching: give the recorded and the synthetic side of a pair the same channel.

Without it, the noise floor solves the pairs: a recording has a room, a microphone and a codec, synthetic speech has
none, and a summary of the spectrum separates the two. Both sides get the same trimming, bandwidth, speech level, noise
and coding; synthetic speech first gets the codings of the recording.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample

from .effects import Rng, Samples, perturbation


_MU = 255.0
_AAC_RATE = 48_000
_AAC_DELAY_SAMPLES = 1024


def encode(
    array: Samples, sampling_rate: int, format: str, subtype: str, compression_level: float | None, **options: Any
) -> bytes:
    """Encode a mono array, clipped to [-1, 1], in memory; `compression_level` is 0 (largest) to 1, or None."""
    import soundfile

    buffer, options = io.BytesIO(), {**options, "format": format, "compression_level": compression_level}
    soundfile.write(buffer, np.clip(array, -1.0, 1.0), sampling_rate, subtype, **options)
    return buffer.getvalue()


def encode_flac(array: np.ndarray) -> bytes:
    """Encode 16 kHz speech as 16-bit FLAC, the coding of data sets."""
    return encode(array, SAMPLING_RATE, "FLAC", "PCM_16", None)


def code_mulaw(samples: Samples, sampling_rate: int, num_bits: float = 8, *, clips_input: bool = False) -> Samples:
    """Code as telephony does: mu-law at 8 kHz (G.711: eight bits); `clips_input` first clips like a 16-bit file."""
    wide = resample(samples, sampling_rate)
    if clips_input:
        wide = np.clip(wide, -1.0, 1.0)
    narrow = np.clip(resample(wide, SAMPLING_RATE, 8000), -1.0, 1.0)
    code = np.sign(narrow) * np.log1p(_MU * np.abs(narrow)) / np.log1p(_MU)
    steps = 2.0 ** (round(num_bits) - 1) - 1
    code = np.round(code * steps) / steps
    decoded = np.sign(code) * np.expm1(np.abs(code) * np.log1p(_MU)) / _MU
    return resample(resample(decoded.astype(np.float32), 8000), SAMPLING_RATE, sampling_rate)


def code_as_file(samples: Samples, sampling_rate: int, rate_hz: int, **options: Any) -> Samples:
    """Encode and decode with libsndfile; the length may change by a few samples."""
    import soundfile

    data = encode(resample(samples, sampling_rate, rate_hz), rate_hz, **options)
    decoded, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    return resample(decoded, rate, sampling_rate)


@perturbation("mulaw", "mu-law at 8 kHz with {} bits", "bits", (8.0, 7.0, 6.0), 8.0, (2.0, 16.0))
def degrade_mulaw(samples: Samples, sampling_rate: int, rng: Rng, num_bits: float) -> Samples:
    return code_mulaw(samples, sampling_rate, num_bits, clips_input=True)


@perturbation("mp3", "MP3 of {} kbit/s", "kbit/s", (64.0, 32.0, 16.0), 32.0, (12.0, 110.0))
def degrade_mp3(samples: Samples, sampling_rate: int, rng: Rng, kbit_s: float) -> Samples:
    # libsndfile's scale at this rate: 160 kbit/s at 0, 8 at 1. A constant bit rate would delay the sound.
    options = {"compression_level": (160 - kbit_s) / 152, "bitrate_mode": "AVERAGE"}
    return code_as_file(samples, sampling_rate, SAMPLING_RATE, format="MP3", subtype="MPEG_LAYER_III", **options)


@perturbation("opus", "Opus of {} kbit/s", "kbit/s", (32.0, 16.0, 8.0), 16.0, (6.0, 256.0), is_held_out=True)
def degrade_opus(samples: Samples, sampling_rate: int, rng: Rng, kbit_s: float) -> Samples:
    # libsndfile's scale: 256 kbit/s at 0, 6 at 1.
    level = (256 - kbit_s) / 250
    return code_as_file(samples, sampling_rate, SAMPLING_RATE, format="OGG", subtype="OPUS", compression_level=level)


def round_to_eight_bits(samples: Samples, sampling_rate: int, rate_hz: int, peak: float) -> Samples:
    """Round samples to eight bits at another rate, with the peak raised to a level meanwhile.

    Speech recorded for eight bits uses the whole range. Without the gain, rounding noise would mask a quiet voice.
    """
    array = resample(samples, sampling_rate, rate_hz)
    scale = 128 * peak / max(float(np.abs(array).max(initial=0.0)), 1e-9)
    return resample(np.round(array * scale) / scale, rate_hz, sampling_rate)


def code_aac(samples: Samples, sampling_rate: int) -> Samples:
    """Code as AAC at 48 kHz and 128 kbit/s, as in video clips (MELD)."""
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
    # The bare stream does not record the encoder's delay of one block.
    start = min(_AAC_DELAY_SAMPLES, len(decoded))
    return resample(decoded[start:], _AAC_RATE, sampling_rate)[: len(samples)]


# Codings by the names that rows and settings use.
CODINGS: dict[str, Callable[[Samples, int], Samples]] = {
    "aac": code_aac,
    # MPEG-2.5 layer III, the coding of Flight of the Amazon Queen.
    "mp3_11k": partial(code_as_file, rate_hz=11_025, format="MP3", subtype="MPEG_LAYER_III", compression_level=0.7),
    "mulaw": code_mulaw,
    # About 24 kbit/s on libsndfile's scale.
    "opus": partial(code_as_file, format="OGG", subtype="OPUS", rate_hz=SAMPLING_RATE, compression_level=0.93),
    # The sampling rate of Asterisk's prompts.
    "pcm_8k": lambda samples, sampling_rate: resample(resample(samples, sampling_rate, 8000), 8000, sampling_rate),
    # Raw samples of old games, at the peak level of Drascula's median clip.
    "pcm_u8_11k": partial(round_to_eight_bits, rate_hz=11_025, peak=0.7),
    "vorbis_22k": partial(code_as_file, format="OGG", subtype="VORBIS", rate_hz=22_050, compression_level=0.3),
}


@dataclass(frozen=True)
class ChannelSettings:
    """The channel that both sides of a pair get; every row records it."""

    trim_db: float = 35.0  # Below the loudest frame; the builder trims each part of a turn.
    bandwidth_hz: float = 4000.0  # Lower frequencies are kept.
    level_dbfs: float = -26.0  # Level of the active speech.
    snr_db: float = 20.0  # Speech over the added white noise.
    coding: str = "mulaw"  # Name in `CODINGS`, or `"none"`; applied last.

    def __post_init__(self) -> None:
        if self.coding != "none" and self.coding not in CODINGS:
            raise ValueError(f"channel coding is {self.coding!r}; it must be 'none' or one of {sorted(CODINGS)}.")
        if not 0 < self.bandwidth_hz <= SAMPLING_RATE / 2:
            raise ValueError(f"bandwidth_hz is {self.bandwidth_hz}; it must be in (0, {SAMPLING_RATE // 2}].")

    def as_row(self) -> dict[str, Any]:
        return asdict(self)

    def __call__(self, samples: Samples, sampling_rate: int, rng: Rng) -> Samples:
        rate = round(2 * self.bandwidth_hz)
        narrow = resample(samples, sampling_rate, rate)
        level = 10 ** (self.level_dbfs / 20)
        narrow = narrow * (level / max(_measure_active_level(narrow), 1e-9))
        noise = rng.standard_normal(len(narrow), dtype=np.float32) * (level * 10 ** (-self.snr_db / 20))
        wide = resample(np.clip(narrow + noise, -1.0, 1.0), rate, sampling_rate)
        return wide if self.coding == "none" else CODINGS[self.coding](wide, sampling_rate)


def _measure_active_level(array: np.ndarray) -> float:
    """Return the root mean square of the louder half of the 20 ms frames, which excludes pauses."""
    size = max(len(array) // max(len(array) // 160, 1), 1)
    frames = array[: len(array) // size * size].reshape(-1, size)
    power = np.sort(np.square(frames).mean(axis=1))
    return math.sqrt(power[len(power) // 2 :].mean())
