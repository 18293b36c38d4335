"""Effects on a recording: gain, silence, noise, room, equaliser, clipping, resampling, speed, tempo.

All but silence, speed and tempo keep the length (resampling within a few samples), and none delays the signal. Needs
NumPy and soxr only; `Tempo` needs FFmpeg's libraries (`av`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from sdiareward.audio_sdiareward import resample

from .levels import measure_level, scale_to_level, trim_silence
from .transform import Transform


# Frames this far below the loudest one are pauses, not speech, when the level of a noise is set, in dB.
_TRIM_DB = 35.0
_TELEPHONE_LOW_HZ = 300.0
# Width of the flanks of the telephone band, as a share of the edge's frequency: steeper ones ring.
_FLANK = 0.1
# A tilt turns the spectrum around this frequency; below the lower one it stays as it is there.
_TILT_PIVOT_HZ, _TILT_LOW_HZ = 1000.0, 62.5
# A living room, and the distance from mouth to microphone.
_ROOM_M3, _DISTANCE_M = 60.0, 1.0
# Sound reaches a wall and comes back before there is any reverberation.
_FIRST_REFLECTION_S = 0.003
_PEAK = 0.99


@dataclass(frozen=True)
class Gain(Transform):
    """Scale the signal; nothing is clipped."""

    gain_db: float

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        return samples * np.float32(10 ** (self.gain_db / 20))


@dataclass(frozen=True)
class SetLevel(Transform):
    """Scale the signal to a level, or to a lower one where its peak would clip."""

    level_dbfs: float  # Root mean square.

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        gain = 10 ** (self.level_dbfs / 20) / max(measure_level(samples), 1e-9)
        highest = _PEAK / max(float(np.abs(samples).max(initial=0.0)), 1e-9)
        return samples * min(gain, highest)


@dataclass(frozen=True)
class AddSilence(Transform):
    duration_s: float
    place: Literal["before", "after"]

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        silence = np.zeros(round(self.duration_s * sampling_rate), dtype=np.float32)
        return np.concatenate([silence, samples] if self.place == "before" else [samples, silence])


@dataclass(frozen=True)
class AddNoise(Transform):
    """Add white or pink noise (equal power per octave) below the level of the speech, pauses at the ends excluded."""

    snr_db: float
    color: Literal["white", "pink"] = "white"

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        noise: np.ndarray
        if self.color == "white":
            noise = rng.standard_normal(len(samples), dtype=np.float32)
        else:
            spectrum = np.fft.rfft(rng.standard_normal(len(samples)))
            spectrum[0] = 0
            spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
            noise = np.fft.irfft(spectrum, len(samples))
        speech_level = measure_level(trim_silence(samples, _TRIM_DB))
        return samples + scale_to_level(noise, speech_level * 10 ** (-self.snr_db / 20))


@dataclass(frozen=True)
class Reverberate(Transform):
    """Put the signal into a room; the level stays.

    The impulse response is the direct sound, then noise under an exponential decay, as strong against it as in a
    diffuse field (Hopkins and Stryker's formula). The tail after the end of the signal is cut off.
    """

    rt60_s: float  # Time in which the sound decays by 60 dB.

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        time_s = np.arange(1, round(self.rt60_s * sampling_rate)) / sampling_rate
        noise = rng.standard_normal(len(time_s))
        tail = noise * 10 ** (-3 * time_s / self.rt60_s) * (time_s >= _FIRST_REFLECTION_S)
        critical_distance_m = 0.057 * math.sqrt(_ROOM_M3 / self.rt60_s)
        tail *= _DISTANCE_M / critical_distance_m / math.sqrt(np.sum(np.square(tail)))
        size = _find_fast_size(len(samples) + len(tail))
        response = np.concatenate([[1.0], tail])
        wet = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(response, size), size)[: len(samples)]
        return scale_to_level(wet, measure_level(samples))


@dataclass(frozen=True)
class Tilt(Transform):
    """Make the sound brighter or duller; the level stays."""

    db_per_octave: float

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        def gain(hertz: np.ndarray) -> np.ndarray:
            octaves = np.log2(np.maximum(hertz, _TILT_LOW_HZ) / _TILT_PIVOT_HZ)
            return 10 ** (self.db_per_octave * octaves / 20)

        return scale_to_level(_weigh_spectrum(samples, sampling_rate, gain), measure_level(samples))


@dataclass(frozen=True)
class TelephoneBand(Transform):
    """Keep the band from 300 Hz to an upper edge."""

    high_hz: float

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        def gain(hertz: np.ndarray) -> np.ndarray:
            low = np.interp(hertz, [_TELEPHONE_LOW_HZ * (1 - _FLANK), _TELEPHONE_LOW_HZ], [0.0, 1.0])
            return low * np.interp(hertz, [self.high_hz, self.high_hz * (1 + _FLANK)], [1.0, 0.0])

        return _weigh_spectrum(samples, sampling_rate, gain)


def _weigh_spectrum(samples: np.ndarray, sampling_rate: int, gain: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Multiply the spectrum by a gain per frequency, without delay."""
    # Zeros after the signal: the filter is circular.
    size = _find_fast_size(len(samples) + sampling_rate // 10)
    spectrum = np.fft.rfft(samples, size) * gain(np.fft.rfftfreq(size, 1 / sampling_rate))
    return np.fft.irfft(spectrum, size)[: len(samples)]


def _find_fast_size(num_samples: int) -> int:
    """Return the next power of two: a Fourier transform of another size can take ten times as long."""
    return 1 << (num_samples - 1).bit_length()


@dataclass(frozen=True)
class InvertPolarity(Transform):
    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        return -samples


@dataclass(frozen=True)
class AddOffset(Transform):
    offset: float  # Of full scale.

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        return samples + np.float32(self.offset)


@dataclass(frozen=True)
class Clip(Transform):
    percent: float  # Of the samples.

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        limit = np.quantile(np.abs(samples), 1 - self.percent / 100)
        return np.clip(samples, -limit, limit)


@dataclass(frozen=True)
class Resample(Transform):
    rate_hz: float

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        between = round(self.rate_hz)
        return resample(resample(samples, sampling_rate, between), between, sampling_rate)


@dataclass(frozen=True)
class ChangeSpeed(Transform):
    """Play faster or slower; the pitch moves with the speed, as on a tape."""

    percent: float  # Below 0 slower.

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        return resample(samples, round(sampling_rate * (1 + self.percent / 100)), sampling_rate)


@dataclass(frozen=True)
class ChangeTempo(Transform):
    """Make speech faster or slower at the same pitch, with FFmpeg's `atempo`."""

    tempo: float  # 0.5 to 100; above 1 faster.

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        import av

        graph = av.filter.Graph()
        time_base = Fraction(1, sampling_rate)
        source = graph.add_abuffer(sample_rate=sampling_rate, format="flt", layout="mono", time_base=time_base)
        graph.link_nodes(source, graph.add("atempo", str(self.tempo)), graph.add("abuffersink")).configure()
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None], np.float32), "flt", "mono")
        frame.sample_rate, frame.pts = sampling_rate, 0
        graph.push(frame)
        graph.push(None)
        chunks: list[np.ndarray] = []
        while True:
            try:
                chunks.append(graph.pull().to_ndarray().reshape(-1))
            except (av.error.BlockingIOError, av.error.EOFError):
                return np.concatenate(chunks).astype(np.float32)
