"""Sounds around the user (attribute `audio`): synthesised, or read from a folder of clips.

The paper takes its sounds from AudioCaps. These recordings cannot be shared. Twelve of Table 4's 21 categories are
synthesised here from oscillators, damped resonances and noise; the same seed gives the same sound on any machine. They
are toys for offline runs: a judge that is trained on them learns twelve formulas. A knock, a siren, bubbles, thunder
or a bee is easily recognised, a car or ice less so. Voices of people and larger animals need clips:
`EVENTS_DIR/CATEGORY/*.wav`, or folders of other names, such as AudioSet's classes, by `classes`. Clips also replace
synthesised sounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.perturbations.levels import measure_level, scale_to_level
from sdiareward.perturbations.sound_clips import find_clips

from .schema import CATEGORIES


Generator = np.random.Generator
Classes = Mapping[str, Sequence[str]]
_TWO_PI = 2 * np.pi


def list_events(events_dir: str | Path | None = None) -> tuple[str, ...]:
    """Return the available categories of sounds, in the order of Table 4."""
    return tuple(name for name in CATEGORIES["audio"] if name in _MAKERS or find_clips(name, events_dir))


def find_event_clips(category: str, events_dir: str | Path | None, classes: Classes | None = None) -> list[Path]:
    """Return the clips of a category; `classes` names its folders where they differ from it."""
    return [path for name in (classes or {}).get(category, (category,)) for path in find_clips(name, events_dir)]


def load_event(
    category: str,
    duration_s: float,
    seed: int,
    events_dir: str | Path | None = None,
    *,
    classes: Classes | None = None,
    is_synthesised: bool = True,
) -> np.ndarray:
    """Return a sound of a category, cut or repeated to a duration.

    Args:
        category (`str`): One of `list_events`.
        duration_s (`float`): Its duration, in seconds.
        seed (`int`): Seed that draws the clip, or the details of a synthesised sound.
        events_dir (`str` or `Path`, *optional*): Folder of clips, which come before synthesised sounds.
        classes (`Mapping[str, Sequence[str]]`, *optional*): Folders of a category by names of their own.
        is_synthesised (`bool`, *optional*, defaults to `True`): Synthesise a sound without a clip.

    Returns:
        `np.ndarray` of shape `(num_samples,)`: Mono, 16 kHz, float32, peak 0.9.

    Raises:
        ValueError: The category cannot be synthesised and has no clip.
        AudioError: A clip cannot be read.
    """
    rng, num_samples = np.random.default_rng(seed), round(duration_s * SAMPLING_RATE)
    if clips := find_event_clips(category, events_dir, classes):
        clip = read_audio(clips[rng.integers(len(clips))])
        sound = np.tile(clip, -(-num_samples // len(clip)))[:num_samples]
    elif is_synthesised and category in _MAKERS:
        sound = _MAKERS[category](rng, num_samples)
    else:
        raise ValueError(
            f"sound {category!r} {'cannot be' if is_synthesised else 'is not to be'} synthesised and has no clip in "
            f"{events_dir}; put one into EVENTS_DIR/{(classes or {}).get(category, (category,))[0]}, or choose from "
            f"{list(list_events(events_dir))}."
        )
    return (0.9 * sound / max(float(np.abs(sound).max(initial=0.0)), 1e-9)).astype(np.float32)


def mix_event(speech: np.ndarray, event: np.ndarray, *, snr_db: float, lead_s: float) -> np.ndarray:
    """Mix a sound under speech: it begins before the speech and lasts until the speech ends.

    Args:
        speech (`np.ndarray` of shape `(num_samples,)`): Mono, 16 kHz.
        event (`np.ndarray`): The sound; it is cut to lead and speech.
        snr_db (`float`): Level of the speech above that of the sound (root mean squares), in dB.
        lead_s (`float`): Time of the sound before the speech begins, in seconds.

    Returns:
        `np.ndarray` of shape `(lead + num_samples,)`, float32, within full scale.
    """
    lead = round(lead_s * SAMPLING_RATE)
    mixed = np.concatenate([np.zeros(lead, dtype=np.float32), speech])
    event = event[: len(mixed)]
    mixed[: len(event)] += scale_to_level(event, measure_level(speech) * 10 ** (-snr_db / 20)).astype(np.float32)
    return (mixed / max(1.0, float(np.abs(mixed).max(initial=0.0)) / 0.99)).astype(np.float32)


def _list_times_s(num_samples: int) -> np.ndarray:
    return np.arange(num_samples) / SAMPLING_RATE


def _make_noise(rng: Generator, num_samples: int, low_hz: float, high_hz: float) -> np.ndarray:
    """White noise between two frequencies, falling off softly outside."""
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    hertz = np.fft.rfftfreq(num_samples, 1 / SAMPLING_RATE)
    spectrum /= np.sqrt(1 + (hertz / high_hz) ** 8) * np.sqrt(1 + (low_hz / np.maximum(hertz, 1e-3)) ** 8)
    noise = np.fft.irfft(spectrum, num_samples)
    return noise / max(float(np.abs(noise).max(initial=0.0)), 1e-9)


def _make_ring(partials_hz: tuple[float, ...], decay_s: float, glide: float = 0.0) -> np.ndarray:
    """A struck body: damped partials, each weaker than the one before; `glide` bends them up (or down)."""
    time_s = _list_times_s(round(6 * decay_s * SAMPLING_RATE))
    phases = [_TWO_PI * hertz * (time_s + glide * time_s**2 / 2) for hertz in partials_hz]
    waves = [np.sin(phase) / (1 + number) for number, phase in enumerate(phases)]
    return np.sum(waves, axis=0) * np.exp(-time_s / decay_s)


def _place_sounds(num_samples: int, starts_s: np.ndarray, make: Callable[[int], np.ndarray]) -> np.ndarray:
    """Add short sounds at their times, cut at the end."""
    sound = np.zeros(num_samples)
    for number, start_s in enumerate(starts_s):
        start = round(float(start_s) * SAMPLING_RATE)
        short = make(number)[: max(num_samples - start, 0)]
        sound[start : start + len(short)] += short
    return sound


def _draw_times_s(rng: Generator, num_samples: int, per_second: float) -> np.ndarray:
    """Random times, in order."""
    count = max(1, round(num_samples / SAMPLING_RATE * per_second))
    return np.sort(rng.uniform(0, num_samples / SAMPLING_RATE, count))


def _make_bee(rng: Generator, num_samples: int) -> np.ndarray:
    """A buzz near 230 Hz, rich in harmonics, that comes and goes and changes its pitch as the bee turns."""
    time_s = _list_times_s(num_samples)
    wander = (
        1 + 0.08 * np.sin(_TWO_PI * 0.7 * time_s + rng.uniform(0, 6)) + 0.03 * _make_noise(rng, num_samples, 0.5, 9)
    )
    phase = _TWO_PI * np.cumsum(230 * wander) / SAMPLING_RATE
    buzz = np.sum([np.sin(k * phase) / k for k in range(1, 16)], axis=0)
    return buzz * (0.6 + 0.4 * np.sin(_TWO_PI * 0.45 * time_s + rng.uniform(0, 6)))


def _make_chirp(start_hz: float, end_hz: float, duration_s: float) -> np.ndarray:
    time_s = _list_times_s(round(duration_s * SAMPLING_RATE))
    phase = _TWO_PI * (start_hz * time_s + (end_hz - start_hz) * time_s**2 / (2 * duration_s))
    return np.sin(phase) * np.sin(np.pi * time_s / duration_s) ** 2


def _make_bird(rng: Generator, num_samples: int) -> np.ndarray:
    """Phrases of whistled glides between 2.5 and 6 kHz, a pause after each."""
    starts = [0.9 * phrase + 0.16 * note for phrase in range(1 + num_samples // 14_400) for note in range(4)]
    melody_hz = rng.uniform(2500, 6000, (4, 2))
    notes = [_make_chirp(float(start_hz), float(end_hz), 0.13) for start_hz, end_hz in melody_hz]
    return _place_sounds(num_samples, np.array(starts), lambda number: notes[number % 4])


def _make_chirping(rng: Generator, num_samples: int) -> np.ndarray:
    """A cricket: trains of short pulses at one high pitch."""
    hertz = rng.uniform(4200, 5000)
    starts = [0.45 * train + 0.03 * pulse for train in range(1 + num_samples // 7200) for pulse in range(8)]
    return _place_sounds(num_samples, np.array(starts), lambda _: _make_chirp(hertz, hertz, 0.022))


def _make_car(rng: Generator, num_samples: int) -> np.ndarray:
    """An engine that speeds up, with its firing rate and harmonics, over the noise of the tyres."""
    time_s = _list_times_s(num_samples)
    hertz = 38 + 30 * time_s / max(time_s[-1], 1e-3) + rng.uniform(0, 8)
    phase = _TWO_PI * np.cumsum(hertz * (1 + 0.02 * _make_noise(rng, num_samples, 2, 15))) / SAMPLING_RATE
    engine = np.sum([np.sin(k * phase + k * k) / k**0.6 for k in range(1, 30)], axis=0)
    return engine / 6 + 0.35 * _make_noise(rng, num_samples, 200, 1800)


def _make_clapping(rng: Generator, num_samples: int) -> np.ndarray:
    """Applause: thirty short bursts of noise a second, each with its own resonance."""

    def clap(_: int) -> np.ndarray:
        length = round(0.03 * SAMPLING_RATE)
        centre_hz = rng.uniform(900, 2400)
        burst = _make_noise(rng, length, 0.6 * centre_hz, 1.8 * centre_hz) * np.exp(-_list_times_s(length) / 0.006)
        return burst * rng.uniform(0.3, 1.0)

    return _place_sounds(num_samples, _draw_times_s(rng, num_samples, 30), clap)


def _make_horse(rng: Generator, num_samples: int) -> np.ndarray:
    """Hooves at a trot: two beats close together, then two more, each a hollow knock on stone."""
    starts = [
        0.56 * stride + offset for stride in range(1 + num_samples // 8960) for offset in (0.0, 0.11, 0.28, 0.39)
    ]
    pitches = rng.uniform(0.94, 1.06, 4)

    def hoof(number: int) -> np.ndarray:
        hertz = (620 if number % 2 else 850) * pitches[number % 4]
        beat = _make_ring((hertz, 2.1 * hertz, 3.3 * hertz), 0.018)
        click = _make_noise(rng, 160, 1500, 5000) * np.exp(-_list_times_s(160) / 0.002)
        beat[:160] += 0.5 * click
        return beat

    return _place_sounds(num_samples, np.array(starts), hoof)


def _make_ice(rng: Generator, num_samples: int) -> np.ndarray:
    """Cubes in a glass: bright, short clinks."""

    def clink(_: int) -> np.ndarray:
        hertz = rng.uniform(2300, 3900)
        return rng.uniform(0.3, 1.0) * _make_ring((hertz, 1.52 * hertz, 1.97 * hertz), rng.uniform(0.02, 0.06))

    return _place_sounds(num_samples, _draw_times_s(rng, num_samples, 6), clink)


def _make_knocking(rng: Generator, num_samples: int) -> np.ndarray:
    """Three knocks on a wooden door, a pause, three more."""
    starts = [1.5 * group + 0.24 * knock for group in range(1 + num_samples // 24_000) for knock in range(3)]
    hertz = rng.uniform(150, 210)

    def knock(_: int) -> np.ndarray:
        blow = _make_ring((hertz, 1.9 * hertz, 3.2 * hertz, 5.1 * hertz), 0.03)
        blow[:240] += 0.6 * _make_noise(rng, 240, 400, 3000) * np.exp(-_list_times_s(240) / 0.003)
        return blow * rng.uniform(0.85, 1.0)

    return _place_sounds(num_samples, np.array(starts), knock)


def _make_ocean(rng: Generator, num_samples: int) -> np.ndarray:
    """Waves that swell, break with more high frequencies, and run out, every four seconds."""
    time_s = _list_times_s(num_samples)
    swell = (0.5 + 0.5 * np.sin(_TWO_PI * time_s / 4 + rng.uniform(0, 6))) ** 2
    return _make_noise(rng, num_samples, 60, 500) * (0.4 + 0.6 * swell) + 0.8 * swell * _make_noise(
        rng, num_samples, 500, 4500
    )


def _make_police(rng: Generator, num_samples: int) -> np.ndarray:
    """A wailing siren between 650 and 1450 Hz, up and down every two seconds, slightly distorted."""
    cycle = np.sin(_TWO_PI * _list_times_s(num_samples) / 2 + rng.uniform(0, 6))
    phase = _TWO_PI * np.cumsum(1050 + 400 * cycle) / SAMPLING_RATE
    return np.tanh(2.5 * np.sin(phase)) + 0.2 * np.sin(3 * phase)


def _make_thunder(rng: Generator, num_samples: int) -> np.ndarray:
    """A crack, and a rumble that rolls on in a few swells and dies away."""
    time_s = _list_times_s(num_samples)
    rumble = np.zeros(num_samples)
    for start_s in (0.15, *np.sort(rng.uniform(0.5, 3.0, 3))):
        since_s = np.maximum(time_s - start_s, 0)
        rumble += rng.uniform(0.6, 1.0) * np.where(time_s > start_s, since_s / 0.2 * np.exp(1 - since_s / 0.9), 0)
    crack = np.exp(-np.abs(time_s - 0.15) / 0.07)
    return _make_noise(rng, num_samples, 25, 170) * rumble + 0.9 * crack * _make_noise(rng, num_samples, 150, 3500)


def _make_waterfall(rng: Generator, num_samples: int) -> np.ndarray:
    """Bubbles, each a short tone that bends upwards, over a bed of noise."""

    def bubble(_: int) -> np.ndarray:
        return rng.uniform(0.2, 1.0) * _make_ring((rng.uniform(450, 1700),), rng.uniform(0.008, 0.025), glide=12.0)

    return _place_sounds(num_samples, _draw_times_s(rng, num_samples, 70), bubble) + 0.3 * _make_noise(
        rng, num_samples, 400, 5000
    )


_MAKERS: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "bee": _make_bee,
    "bird": _make_bird,
    "car": _make_car,
    "chirping": _make_chirping,
    "clapping": _make_clapping,
    "horse": _make_horse,
    "ice": _make_ice,
    "knocking": _make_knocking,
    "ocean": _make_ocean,
    "police": _make_police,
    "thunder": _make_thunder,
    "waterfall burbling": _make_waterfall,
}
