"""Effects on a recording, in the order from the mouth to the file, and levels of signals; `channel` has the codecs.

A perturbation must not change the judgement of a conversation: a model whose reward changes with it scores the
recording. All effects but silence, speed and tempo keep the length (resampling within a few samples); none delays the
signal. They need only NumPy and soxr; `change_tempo` needs FFmpeg's libraries (`av`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample


Samples = np.ndarray
Rng = np.random.Generator
_FRAME_SAMPLES = SAMPLING_RATE // 100
_TRIM_MARGIN_FRAMES = 5
# Frames this many dB below the loudest one count as pauses when a noise level is set.
_TRIM_DB = 35.0
_TELEPHONE_LOW_HZ = 300.0
# Width of the telephone band's slopes, relative to the edge frequency; steeper slopes ring.
_FLANK = 0.1
# A tilt pivots at this frequency; below the lower one the gain is constant.
_TILT_PIVOT_HZ, _TILT_LOW_HZ = 1000.0, 62.5
# A living room, and the distance from mouth to microphone.
_ROOM_M3, _DISTANCE_M = 60.0, 1.0
# Reverberation starts after the first reflection has returned.
_FIRST_REFLECTION_S = 0.003
_PEAK = 0.99
_ENDS_S, _SNRS_DB, _RATES_HZ = (0.5, 1.0, 2.0), (30.0, 20.0, 10.0), (2000.0, 384_000.0)
# From samples, sampling rate, generator and severity to the changed samples.
Effect = Callable[[Samples, int, Rng, float], Samples]


@dataclass(frozen=True)
class Perturbation:
    title: str  # `{}` stands for the severity.
    unit: str  # Empty for an effect without a severity.
    severities: tuple[float, ...]  # From weak to strong, with both signs where both make sense.
    default: float
    limits: tuple[float, float]
    effect: Effect
    keeps_length: bool
    is_held_out: bool  # Training presets exclude it, so that the audit applies an unseen channel.

    def format_title(self, severity: float | None = None) -> str:
        return self.title.format(f"{self.default if severity is None else severity:g}")

    def draw_severity(self, rng: Rng) -> float:
        return float(rng.uniform(min(self.severities), max(self.severities))) if self.severities else self.default


PERTURBATIONS: dict[str, Perturbation] = {}


def perturbation(name: str, *fields: Any, keeps_length: bool = True, is_held_out: bool = False) -> Any:
    """Register the decorated effect in `PERTURBATIONS`; `fields` are the first fields of [`Perturbation`]."""

    def enter(effect: Effect) -> Effect:
        given = (*fields, effect, keeps_length, is_held_out)
        PERTURBATIONS[name] = Perturbation(*given)
        return effect

    return enter


def measure_level(samples: Samples) -> float:
    """Return the root mean square of a signal; 0 for an empty one."""
    return math.sqrt(np.mean(np.square(samples, dtype=np.float64))) if samples.size else 0.0


def scale_to_level(samples: Samples, level: float) -> Samples:
    """Scale a signal to a root mean square; silence stays silence."""
    return samples * (level / max(measure_level(samples), 1e-9))


def set_level(samples: Samples, level_dbfs: float) -> Samples:
    """Scale a signal to a level, or to a lower one if its peak would clip."""
    gain = 10 ** (level_dbfs / 20) / max(measure_level(samples), 1e-9)
    return samples * min(gain, _PEAK / max(float(np.abs(samples).max(initial=0.0)), 1e-9))


def trim_silence(array: Samples, trim_db: float) -> Samples:
    """Trim leading and trailing 10 ms frames more than `trim_db` below the loudest; keep a margin of 50 ms."""
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


@perturbation("speed", "speed (and pitch) {} %", "%", (-1.0, 1.0, -3.0, 3.0), 3.0, (-50.0, 100.0), keeps_length=False)
def change_speed(samples: Samples, sampling_rate: int, rng: Rng, percent: float) -> Samples:
    """Play faster, or slower (below 0); the pitch changes with the speed, as on a tape."""
    return resample(samples, round(sampling_rate * (1 + percent / 100)), sampling_rate)


@perturbation(
    "leading_silence", "{} s of silence before each turn", "s", _ENDS_S, 0.5, (0.0, 60.0), keeps_length=False
)
def add_silence_before(samples: Samples, sampling_rate: int, rng: Rng, duration_s: float) -> Samples:
    return np.concatenate([np.zeros(round(duration_s * sampling_rate), dtype=np.float32), samples])


@perturbation(
    "trailing_silence", "{} s of silence after each turn", "s", _ENDS_S, 0.5, (0.0, 60.0), keeps_length=False
)
def add_silence_after(samples: Samples, sampling_rate: int, rng: Rng, duration_s: float) -> Samples:
    return np.concatenate([samples, np.zeros(round(duration_s * sampling_rate), dtype=np.float32)])


@perturbation("reverberation", "a room that rings for {} s (RT60)", "s", (0.2, 0.4, 0.8), 0.4, (0.02, 10.0))
def reverberate(samples: Samples, sampling_rate: int, rng: Rng, rt60_s: float) -> Samples:
    """Add the reverberation of a room in which sound decays by 60 dB within `rt60_s`; keep the level.

    The impulse response is the direct sound followed by exponentially decaying noise, with the ratio of a diffuse
    field (Hopkins and Stryker's formula). The tail after the end of the signal is cut off.
    """
    time_s = np.arange(1, round(rt60_s * sampling_rate)) / sampling_rate
    noise = rng.standard_normal(len(time_s))
    tail = noise * 10 ** (-3 * time_s / rt60_s) * (time_s >= _FIRST_REFLECTION_S)
    critical_distance_m = 0.057 * math.sqrt(_ROOM_M3 / rt60_s)
    tail *= _DISTANCE_M / critical_distance_m / math.sqrt(np.sum(np.square(tail)))
    size = _find_fast_size(len(samples) + len(tail))
    response = np.concatenate([[1.0], tail])
    wet = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(response, size), size)[: len(samples)]
    return scale_to_level(wet, measure_level(samples))


@perturbation("noise", "noise {} dB below the speech", "dB", _SNRS_DB, 30.0, (-20.0, 120.0))
def add_noise(samples: Samples, sampling_rate: int, rng: Rng, snr_db: float) -> Samples:
    """Add white noise `snr_db` below the speech, measured without pauses at the ends."""
    return _add_below_speech(samples, rng.standard_normal(len(samples), dtype=np.float32), snr_db)


@perturbation(
    "pink_noise", "pink noise {} dB below the speech", "dB", _SNRS_DB, 30.0, (-20.0, 120.0), is_held_out=True
)
def add_pink_noise(samples: Samples, sampling_rate: int, rng: Rng, snr_db: float) -> Samples:
    """Add noise of equal power per octave."""
    spectrum = np.fft.rfft(rng.standard_normal(len(samples)))
    spectrum[0] = 0
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    return _add_below_speech(samples, np.fft.irfft(spectrum, len(samples)), snr_db)


def _add_below_speech(samples: Samples, noise: Samples, snr_db: float) -> Samples:
    speech_level = measure_level(trim_silence(samples, _TRIM_DB))
    return samples + scale_to_level(noise, speech_level * 10 ** (-snr_db / 20))


@perturbation("tilt", "equaliser of {} dB per octave", "dB per octave", (-1.0, 1.0, -3.0, 3.0), -3.0, (-24.0, 24.0))
def tilt_spectrum(samples: Samples, sampling_rate: int, rng: Rng, db_per_octave: float) -> Samples:
    """Make the sound brighter or duller; keep the level."""

    def gain(hertz: np.ndarray) -> np.ndarray:
        octaves = np.log2(np.maximum(hertz, _TILT_LOW_HZ) / _TILT_PIVOT_HZ)
        return 10 ** (db_per_octave * octaves / 20)

    return scale_to_level(_weigh_spectrum(samples, sampling_rate, gain), measure_level(samples))


@perturbation("gain", "level {} dB", "dB", (-3.0, 3.0, -6.0, 6.0), -6.0, (-60.0, 60.0))
def change_gain(samples: Samples, sampling_rate: int, rng: Rng, gain_db: float) -> Samples:
    """Scale the signal without clipping."""
    return samples * np.float32(10 ** (gain_db / 20))


@perturbation("polarity", "polarity inverted", "", (), 0.0, (-math.inf, math.inf))
def invert_polarity(samples: Samples, sampling_rate: int, rng: Rng, _: float) -> Samples:
    return -samples


@perturbation("dc_offset", "offset of {} of full scale", "of full scale", (0.003, 0.01, 0.03), 0.01, (-1.0, 1.0))
def add_offset(samples: Samples, sampling_rate: int, rng: Rng, offset: float) -> Samples:
    """Add a constant, as a share of full scale."""
    return samples + np.float32(offset)


@perturbation("clipping", "{} % of the samples clipped", "%", (0.1, 1.0, 5.0), 1.0, (0.0, 99.0))
def clip_samples(samples: Samples, sampling_rate: int, rng: Rng, percent: float) -> Samples:
    limit = np.quantile(np.abs(samples), 1 - percent / 100)
    return np.clip(samples, -limit, limit)


@perturbation("telephone_band", "band of 300 to {} Hz", "Hz", (3800.0, 3400.0, 3000.0), 3400.0, (400.0, 384_000.0))
def keep_telephone_band(samples: Samples, sampling_rate: int, rng: Rng, high_hz: float) -> Samples:
    """Keep the band from 300 Hz to `high_hz`."""

    def gain(hertz: np.ndarray) -> np.ndarray:
        low = np.interp(hertz, [_TELEPHONE_LOW_HZ * (1 - _FLANK), _TELEPHONE_LOW_HZ], [0.0, 1.0])
        return low * np.interp(hertz, [high_hz, high_hz * (1 + _FLANK)], [1.0, 0.0])

    return _weigh_spectrum(samples, sampling_rate, gain)


@perturbation("resampling", "resampled to {} Hz and back", "Hz", (44_100.0, 11_025.0), 44_100.0, _RATES_HZ)
@perturbation(
    "narrow_band", "sampled at {} Hz in between", "Hz", (1e4, 8000.0, 6000.0), 8000.0, _RATES_HZ, is_held_out=True
)
def resample_between(samples: Samples, sampling_rate: int, rng: Rng, rate_hz: float) -> Samples:
    """Resample to another rate and back."""
    between = round(rate_hz)
    return resample(resample(samples, sampling_rate, between), between, sampling_rate)


def _weigh_spectrum(samples: Samples, sampling_rate: int, gain: Callable[[np.ndarray], np.ndarray]) -> Samples:
    """Multiply the spectrum by a gain per frequency, without delay."""
    # Pad with zeros, because the filter is circular.
    size = _find_fast_size(len(samples) + sampling_rate // 10)
    spectrum = np.fft.rfft(samples, size) * gain(np.fft.rfftfreq(size, 1 / sampling_rate))
    return np.fft.irfft(spectrum, size)[: len(samples)]


def _find_fast_size(num_samples: int) -> int:
    """Return the next power of two; an FFT of another size can take ten times as long."""
    return 1 << (num_samples - 1).bit_length()


def change_tempo(samples: Samples, sampling_rate: int, tempo: float) -> Samples:
    """Make speech faster (above 1) or slower at the same pitch, with FFmpeg's `atempo`."""
    import av

    graph = av.filter.Graph()
    time_base = Fraction(1, sampling_rate)
    source = graph.add_abuffer(sample_rate=sampling_rate, format="flt", layout="mono", time_base=time_base)
    graph.link_nodes(source, graph.add("atempo", str(tempo)), graph.add("abuffersink")).configure()
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
