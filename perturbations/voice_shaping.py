"""Change a recorded or synthetic voice by rule: pitch, formants, tempo, level, breath, tremor.

Pitch, range, formants, breath and tremor go through the WORLD vocoder (`pyworld`); tempo through FFmpeg's `atempo`,
which keeps the pitch; level is a gain. These are rules: they make a voice higher, shakier or duller, not an actor.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.synthesis.world import flatten_pitch

from .channel import trim_silence


# A level at which the loudest category does not clip yet.
NORMAL_LEVEL_DBFS = -28.0
_TRIM_DB = 35.0
_PEAK = 0.99
_RISE_FRAMES = 80
_FRAME_PERIOD_MS = 5.0
# Aperiodicity is added fully from here on; below, a voice is breathy only to a degree.
_BREATH_HZ = 4000.0
_TILT_PIVOT_HZ = 500.0


@dataclass(frozen=True)
class Shape:
    """How a voice is changed; the defaults leave it as it is.

    Args:
        pitch (`float`): Factor of the fundamental frequency.
        pitch_range (`float`): Factor of the deviations from the mean log pitch: below 1 flatter, above 1 livelier.
        formants (`float`): Factor of the frequencies of the spectral envelope; a shorter vocal tract has more than 1.
        rise (`float`): Factor that the pitch has reached at the end, from 1 within the last 0.4 s.
        tremor (`float`): Depth of a shake of the pitch, as a share of it.
        tremor_hz (`float`): Rate of the shake, in Hz.
        breath (`float`): Share of the voice that is turned into noise at high frequencies, 0 to 1.
        tilt_db (`float`): Change of the spectrum for each octave above 500 Hz, in dB: brighter or duller.
        tempo (`float`): Factor of the speaking rate.
        gain_db (`float`): Level against `NORMAL_LEVEL_DBFS`, in dB.

    Raises:
        ValueError: A factor is not positive, or `breath` is no share.
    """

    pitch: float = 1.0
    pitch_range: float = 1.0
    formants: float = 1.0
    rise: float = 1.0
    tremor: float = 0.0
    tremor_hz: float = 6.0
    breath: float = 0.0
    tilt_db: float = 0.0
    tempo: float = 1.0
    gain_db: float = 0.0

    def __post_init__(self) -> None:
        for name in ("pitch", "formants", "rise", "tempo"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; a factor must be more than 0.")
        if self.pitch_range < 0 or not 0 <= self.breath <= 1:
            raise ValueError(f"pitch_range={self.pitch_range}, breath={self.breath}: must be at least 0, and 0 to 1.")


def shape_voice(array: np.ndarray, shape: Shape, *, vocode: bool) -> np.ndarray:
    """Return speech in another voice, without silence at its ends and at the level of the shape.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Mono, 16 kHz.
        shape (`Shape`): What to change.
        vocode (`bool`): Send the voice through WORLD. All categories of an attribute do or none does, so that the
            vocoder's own sound tells none of them.

    Returns:
        `np.ndarray` of shape `(about num_samples / tempo,)`, float32, within full scale.
    """
    speech = trim_silence(array, _TRIM_DB)
    if vocode:
        speech = _revoice(speech, shape)
    if shape.tempo != 1:
        speech = change_tempo(speech, shape.tempo)
    return set_level(speech, NORMAL_LEVEL_DBFS + shape.gain_db)


def set_level(array: np.ndarray, level_dbfs: float) -> np.ndarray:
    """Scale speech to a root mean square, in dB of full scale; less where its peak would clip."""
    level = float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))
    gain = 10 ** (level_dbfs / 20) / max(level, 1e-9)
    return (array * min(gain, _PEAK / max(float(np.abs(array).max(initial=0.0)), 1e-9))).astype(np.float32)


def change_tempo(array: np.ndarray, tempo: float) -> np.ndarray:
    """Make speech faster (`tempo` above 1) or slower at the same pitch, with FFmpeg's `atempo`.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Mono, 16 kHz.
        tempo (`float`): Factor of the speaking rate, 0.5 to 100.

    Returns:
        `np.ndarray` of shape `(about num_samples / tempo,)`, float32.
    """
    import av

    graph = av.filter.Graph()
    source = graph.add_abuffer(
        sample_rate=SAMPLING_RATE, format="flt", layout="mono", time_base=Fraction(1, SAMPLING_RATE)
    )
    graph.link_nodes(source, graph.add("atempo", str(tempo)), graph.add("abuffersink")).configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(array[None], np.float32), format="flt", layout="mono")
    frame.sample_rate, frame.pts = SAMPLING_RATE, 0
    graph.push(frame)
    graph.push(None)
    chunks: list[np.ndarray] = []
    while True:
        try:
            chunks.append(graph.pull().to_ndarray().reshape(-1))
        except (av.error.BlockingIOError, av.error.EOFError):
            return np.concatenate(chunks).astype(np.float32)


def _revoice(array: np.ndarray, shape: Shape) -> np.ndarray:
    """Analyse with WORLD, change pitch, envelope and aperiodicity, and put together again."""
    world, signal = _load_world(), array.astype(np.float64)
    pitch, times = world.dio(signal, SAMPLING_RATE, frame_period=_FRAME_PERIOD_MS)
    pitch = world.stonemask(signal, pitch, times, SAMPLING_RATE)
    envelope = world.cheaptrick(signal, pitch, times, SAMPLING_RATE)
    aperiodicity = world.d4c(signal, pitch, times, SAMPLING_RATE)
    hertz = np.linspace(0, SAMPLING_RATE / 2, envelope.shape[1])
    if shape.formants != 1:
        envelope, aperiodicity = (_warp(frames, hertz, shape.formants) for frames in (envelope, aperiodicity))
    envelope = envelope * 10 ** (shape.tilt_db / 10 * np.log2(np.maximum(hertz / _TILT_PIVOT_HZ, 1)))
    aperiodicity = aperiodicity + shape.breath * np.minimum(hertz / _BREATH_HZ, 1) * (1 - aperiodicity)
    contour = np.ascontiguousarray(shape_pitch(pitch, shape))
    speech = world.synthesize(
        contour, np.ascontiguousarray(envelope), np.ascontiguousarray(aperiodicity), SAMPLING_RATE, _FRAME_PERIOD_MS
    )
    return speech.astype(np.float32)


def shape_pitch(pitch: np.ndarray, shape: Shape) -> np.ndarray:
    """Change a pitch contour; unvoiced frames stay at 0.

    Args:
        pitch (`np.ndarray` of shape `(num_frames,)`): Hz, a value every 5 ms, 0 where nothing is voiced.
        shape (`Shape`): `pitch`, `pitch_range`, `rise`, `tremor` and `tremor_hz` count here.
    """
    contour = flatten_pitch(pitch, shape.pitch_range) * shape.pitch
    voiced = np.flatnonzero(pitch)
    if shape.rise != 1 and voiced.size:
        contour *= np.interp(np.arange(len(pitch)), [voiced[-1] - _RISE_FRAMES, voiced[-1]], [1, shape.rise])
    seconds = np.arange(len(pitch)) * _FRAME_PERIOD_MS / 1000
    return contour * (1 + shape.tremor * np.sin(2 * np.pi * shape.tremor_hz * seconds))


def _warp(frames: np.ndarray, hertz: np.ndarray, factor: float) -> np.ndarray:
    """Stretch the frequency axis of `(num_frames, num_bins)` by `factor`."""
    return np.stack([np.interp(hertz / factor, hertz, frame) for frame in frames])


def _load_world() -> Any:
    with warnings.catch_warnings():
        # pyworld imports pkg_resources, which warns of its own end; setuptools is held below 81 for it.
        warnings.simplefilter("ignore", UserWarning)
        import pyworld

    return pyworld
