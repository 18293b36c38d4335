"""What the nuisances do to samples: each from signal, rate in Hz, severity and randomness to another signal.

Severities are checked before (`effects.apply`). Nothing is changed in place. All but silence and speed keep the
length, and nothing is delayed. Needs NumPy, soxr and libsndfile only.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample

from .channel import code_mulaw, encode, trim_silence


# Frames this far below the loudest one are pauses, not speech, when the level of a noise is set, in dB.
_TRIM_DB = 35.0
_TELEPHONE_LOW_HZ = 300.0
# Width of the flanks of the telephone band, as a share of the edge's frequency: steeper ones ring.
_FLANK = 0.1
# A tilt turns the spectrum around this frequency; below the lower one it stays as it is there.
_TILT_PIVOT_HZ, _TILT_LOW_HZ = 1000.0, 62.5
# A living room, and the way from mouth to microphone.
_ROOM_M3, _DISTANCE_M = 60.0, 1.0
# Sound reaches a wall and comes back before there is any reverberation.
_FIRST_REFLECTION_S = 0.003

Generator = np.random.Generator


def level(array: np.ndarray) -> float:
    """Return the root mean square of a signal; 0 for one without samples."""
    return math.sqrt(np.mean(np.square(array, dtype=np.float64))) if array.size else 0.0


def change_level(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Scale by the severity in dB; nothing is clipped."""
    return array * np.float32(10 ** (severity / 20))


def add_leading_silence(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Put zeros before the signal, for as many seconds as the severity says."""
    return np.concatenate([np.zeros(round(severity * rate), dtype=np.float32), array])


def add_trailing_silence(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Put zeros behind the signal, for as many seconds as the severity says."""
    return np.concatenate([array, np.zeros(round(severity * rate), dtype=np.float32)])


def add_white_noise(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Add white noise that lies the severity below the speech between its first and last loud frame, in dB."""
    return _add_noise(array, rng.standard_normal(len(array), dtype=np.float32), severity)


def add_pink_noise(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Add noise with as much power in each octave, the severity below the speech, in dB."""
    spectrum = np.fft.rfft(rng.standard_normal(len(array)))
    spectrum[0] = 0
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    return _add_noise(array, np.fft.irfft(spectrum, len(array)), severity)


def _add_noise(array: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    wanted = level(trim_silence(array, _TRIM_DB)) * 10 ** (-snr_db / 20)
    return array + noise * (wanted / max(level(noise), 1e-9))


def reverberate(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Put the signal into a room: the sound decays by 60 dB within the severity, in seconds; the level stays.

    The impulse response is the direct sound, then noise under an exponential decay, as strong against it as in a
    diffuse field (Hopkins and Stryker's formula). What rings on after the end is cut off.
    """
    time_s = np.arange(1, round(severity * rate)) / rate
    tail = rng.standard_normal(len(time_s)) * 10 ** (-3 * time_s / severity) * (time_s >= _FIRST_REFLECTION_S)
    critical_distance_m = 0.057 * math.sqrt(_ROOM_M3 / severity)
    tail *= _DISTANCE_M / critical_distance_m / math.sqrt(np.sum(np.square(tail)))
    size = _fast_size(len(array) + len(tail))
    response = np.concatenate([[1.0], tail])
    wet = np.fft.irfft(np.fft.rfft(array, size) * np.fft.rfft(response, size), size)[: len(array)]
    return _at_level_of(array, wet)


def _at_level_of(array: np.ndarray, changed: np.ndarray) -> np.ndarray:
    return changed * (level(array) / max(level(changed), 1e-9))


def tilt(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Make the sound brighter or duller by the severity for each octave, in dB; its level stays."""

    def gain(hertz: np.ndarray) -> np.ndarray:
        octaves = np.log2(np.maximum(hertz, _TILT_LOW_HZ) / _TILT_PIVOT_HZ)
        return 10 ** (severity * octaves / 20)

    return _at_level_of(array, _weigh(array, rate, gain))


def limit_to_telephone_band(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Keep what lies between 300 Hz and the severity, in Hz."""

    def gain(hertz: np.ndarray) -> np.ndarray:
        low = np.interp(hertz, [_TELEPHONE_LOW_HZ * (1 - _FLANK), _TELEPHONE_LOW_HZ], [0.0, 1.0])
        return low * np.interp(hertz, [severity, severity * (1 + _FLANK)], [1.0, 0.0])

    return _weigh(array, rate, gain)


def _weigh(array: np.ndarray, rate: int, gain: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Multiply the spectrum, without delay."""
    # Zeros behind the signal: the filter is circular.
    size = _fast_size(len(array) + rate // 10)
    return np.fft.irfft(np.fft.rfft(array, size) * gain(np.fft.rfftfreq(size, 1 / rate)), size)[: len(array)]


def _fast_size(num_samples: int) -> int:
    """Return the next power of two: a Fourier transform of another size can take ten times as long."""
    return 1 << (num_samples - 1).bit_length()


def invert(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Turn every sample around."""
    return -array


def shift(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Add the severity, a share of full scale, to every sample."""
    return array + np.float32(severity)


def clip(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Cut the peaks off so that the severity, a percentage of the samples, is at the limit."""
    limit = np.quantile(np.abs(array), 1 - severity / 100)
    return np.clip(array, -limit, limit)


def resample_and_back(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Go to the severity, a sampling rate in Hz, and back."""
    between = round(severity)
    return _fit(resample(resample(array, rate, between), between, rate), len(array))


def change_speed(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Play faster by the severity, in percent; below 0 slower. The pitch moves with the speed, as on a tape."""
    return resample(array, round(rate * (1 + severity / 100)), rate)


def code_as_mulaw(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Code as a telephone does, at 8 kHz by mu-law, with as many bits a sample as the severity says."""
    return _at_16_khz(array, rate, lambda speech: code_mulaw(speech, round(severity)))


def code_as_mp3(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Code as MP3 at 16 kHz with about the severity, in kbit/s."""
    # libsndfile's scale at this rate: 160 kbit/s at 0, 8 at 1. A constant rate would delay the sound.
    compression = (160 - severity) / 152
    return _code(array, rate, "MP3", "MPEG_LAYER_III", compression, bitrate_mode="AVERAGE")


def code_as_opus(array: np.ndarray, rate: int, severity: float, rng: Generator) -> np.ndarray:
    """Code as OGG/Opus at 16 kHz with about the severity, in kbit/s."""
    # libsndfile's scale: 256 kbit/s at 0, 6 at 1.
    return _code(array, rate, "OGG", "OPUS", (256 - severity) / 250)


def _code(array: np.ndarray, rate: int, *coding: Any, **options: Any) -> np.ndarray:
    """Encode and decode at 16 kHz."""
    import soundfile

    def code(speech: np.ndarray) -> np.ndarray:
        data = encode(speech, SAMPLING_RATE, *coding, **options)
        return soundfile.read(io.BytesIO(data), dtype="float32")[0]

    return _at_16_khz(array, rate, code)


def _at_16_khz(array: np.ndarray, rate: int, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    changed = change(np.clip(resample(array, rate), -1.0, 1.0))
    return _fit(resample(changed, SAMPLING_RATE, rate), len(array))


def _fit(array: np.ndarray, num_samples: int) -> np.ndarray:
    """Cut or pad at the end what a conversion left a few samples too long or too short."""
    return np.pad(array[:num_samples], (0, max(num_samples - len(array), 0)))
