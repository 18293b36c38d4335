"""Mix clips of speech into a recording: find the speech in them, line turns up, put them in a room with noise.

Everything lies on a grid of 10 ms frames. `speech_world` says what is mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.dataset_builder.episodes import Part, Turn


FRAME_SAMPLES = SAMPLING_RATE // 100
_SPEECH_DB = 35.0
_MIN_PAUSE_FRAMES = 50
_MARGIN_FRAMES = 5
_LEVEL_DBFS = -26.0
_LONG_PAUSE_SHARE = 1 / 12
_LEAD_FRAMES = 100


class Utterance(NamedTuple):
    """One turn as it was spoken: 16 kHz audio, and the stretches of speech in it, in frames of 10 ms."""

    speaker: str
    text: str
    audio: np.ndarray
    speech: tuple[tuple[int, int], ...]

    @property
    def num_frames(self) -> int:
        """Frames from the first sound to the last."""
        return self.speech[-1][1] - self.speech[0][0]

    @property
    def num_speech_frames(self) -> int:
        """Frames with speech."""
        return sum(end - start for start, end in self.speech)


@lru_cache(maxsize=4)
def _read_file(path: str) -> np.ndarray:
    return read_audio(path)


def read_part(part: Part) -> np.ndarray:
    """Return the 16 kHz audio of a part."""
    array = _read_file(part.audio) if isinstance(part.audio, str) else read_audio(part.audio, name=part.text)
    end = None if part.end_s is None else round(part.end_s * SAMPLING_RATE)
    return array[round(part.start_s * SAMPLING_RATE) : end]


def find_speech(array: np.ndarray) -> list[tuple[int, int]]:
    """Return the stretches of speech in a clip of one speaker as pairs of 10 ms frames, the end exclusive.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): 16 kHz.
    """
    frames = array[: len(array) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    power = np.square(frames).mean(axis=1)
    loud = np.flatnonzero(power > power.max(initial=0.0) * 10 ** (-_SPEECH_DB / 10))
    if loud.size == 0:
        return []
    pieces = np.split(loud, np.flatnonzero(np.diff(loud) > _MIN_PAUSE_FRAMES) + 1)
    return [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces]


def make_utterance(turn: Turn, speaker: str, rng: np.random.Generator) -> Utterance:
    """Put the parts of a turn one after another, cut to their speech, with pauses of 0.1-0.4 s between them.

    Args:
        turn (`Turn`): Words and clips.
        speaker (`str`): Who speaks it.
        rng (`np.random.Generator`): Draws the pauses.

    Raises:
        AudioError: Nothing can be heard in any part.
    """
    pieces: list[np.ndarray] = []
    speech: list[tuple[int, int]] = []
    words, position = [], 0
    for part in turn.parts:
        array = read_part(part)
        found = find_speech(array)
        if not found:
            continue
        first = max(found[0][0] - _MARGIN_FRAMES, 0)
        piece = array[first * FRAME_SAMPLES : (found[-1][1] + _MARGIN_FRAMES) * FRAME_SAMPLES]
        piece = np.pad(piece, (0, -len(piece) % FRAME_SAMPLES))
        gap = int(rng.integers(10 - 2 * _MARGIN_FRAMES, 40 - 2 * _MARGIN_FRAMES)) if pieces else 0
        position += gap
        speech += [(position + start - first, position + end - first) for start, end in found]
        pieces += [np.zeros(gap * FRAME_SAMPLES, np.float32), piece]
        position += len(piece) // FRAME_SAMPLES
        words.append(part.text)
    if not speech:
        raise AudioError(f"the clips of {turn.text!r} are silent; choose another seed.")
    return Utterance(speaker, " ".join(words), np.concatenate(pieces), tuple(speech))


def level_speakers(utterances: Sequence[Utterance], rng: np.random.Generator) -> list[Utterance]:
    """Give each speaker one gain: they end up near -26 dBFS, up to 4 dB apart, and keep their dynamics.

    Args:
        utterances (`Sequence[Utterance]`): Turns of any speakers.
        rng (`np.random.Generator`): Draws the differences.
    """
    levelled = {}
    for speaker in sorted({utterance.speaker for utterance in utterances}):
        own = [utterance for utterance in utterances if utterance.speaker == speaker]
        level = np.sqrt(np.mean(np.concatenate([_spoken(utterance) for utterance in own]) ** 2))
        gain = 10 ** ((_LEVEL_DBFS + rng.uniform(-2, 2)) / 20) / level
        for utterance in own:
            levelled[id(utterance)] = utterance._replace(audio=utterance.audio * np.float32(gain))
    return [levelled[id(utterance)] for utterance in utterances]


def _spoken(utterance: Utterance) -> np.ndarray:
    return np.concatenate([utterance.audio[s * FRAME_SAMPLES : e * FRAME_SAMPLES] for s, e in utterance.speech])


def add_third(
    utterances: Sequence[Utterance], others: Sequence[Utterance], share: float, rng: np.random.Generator
) -> list[Utterance]:
    """Put turns of a third speaker between those of the two until they make `share` of the speech.

    Args:
        utterances (`Sequence[Utterance]`): The conversation.
        others (`Sequence[Utterance]`): What the third speaker may say.
        share (`float`): Share aimed at, in [0, 1).
        rng (`np.random.Generator`): Chooses turns and places.
    """
    wanted = share / (1 - share) * sum(utterance.num_speech_frames for utterance in utterances)
    mixed = list(utterances)
    for index in rng.permutation(len(others)):
        length = others[index].num_speech_frames
        if length <= wanted + 50:
            wanted -= length
            mixed.insert(int(rng.integers(1, len(mixed))), others[index])
    return mixed


def lay_out(
    utterances: Sequence[Utterance], overlap_share: float, rng: np.random.Generator
) -> tuple[list[int], list[float]]:
    """Give every turn its time.

    Args:
        utterances (`Sequence[Utterance]`): Turns in their order.
        overlap_share (`float`): Share of the changes of speaker where the turns overlap.
        rng (`np.random.Generator`): Draws pauses and overlaps.

    Returns:
        `tuple`: Frame where the speech of each turn begins; for each change of speaker the overlap over the length of
        the shorter turn, 0 for a pause.
    """
    starts, ratios = [_LEAD_FRAMES], []
    for before, after in zip(utterances, utterances[1:], strict=False):
        # All are drawn every time, so that the pauses do not depend on the condition.
        is_long, pause_s, long_pause_s = rng.random() < _LONG_PAUSE_SHARE, rng.uniform(0.2, 1.5), rng.uniform(3, 12)
        overlaps, is_small = rng.random() < overlap_share, rng.random() < 0.5
        small, large = rng.uniform(0.02, 0.08), rng.uniform(0.15, 0.4)
        shorter = min(before.num_frames, after.num_frames)
        overlap = round((small if is_small else large) * shorter) if overlaps else 0
        gap = -overlap if overlap else round(100 * (long_pause_s if is_long else pause_s))
        starts.append(starts[-1] + before.num_frames + gap)
        ratios.append(overlap / shorter)
    return starts, ratios


def render(
    utterances: Sequence[Utterance],
    starts: Sequence[int],
    rt60_s: float | None,
    snr_db: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Mix the turns with room and noise.

    Args:
        utterances (`Sequence[Utterance]`): Turns.
        starts (`Sequence[int]`): Frame where the speech of each begins.
        rt60_s (`float`, *optional*): Reverberation time of the room; None for no room.
        snr_db (`float`): Power of the speech, where somebody speaks, over that of the noise, in dB.
        rng (`np.random.Generator`): Draws both.

    Returns:
        `np.ndarray` of shape `(num_samples,)`: 16 kHz, float32, within [-0.99, 0.99].
    """
    num_frames = max(start + u.num_frames for start, u in zip(starts, utterances, strict=True)) + _LEAD_FRAMES
    mix = np.zeros(num_frames * FRAME_SAMPLES, np.float32)
    is_speech = np.zeros(num_frames, bool)
    for speaker in sorted({utterance.speaker for utterance in utterances}):
        track = np.zeros_like(mix)
        for start, utterance in zip(starts, utterances, strict=True):
            if utterance.speaker == speaker:
                offset = start - utterance.speech[0][0]
                track[offset * FRAME_SAMPLES :][: len(utterance.audio)] += utterance.audio
                for first, last in utterance.speech:
                    is_speech[offset + first : offset + last] = True
        mix += _reverberate(track, rt60_s, rng)
    power = np.square(mix[np.repeat(is_speech, FRAME_SAMPLES)]).mean()
    mix += _pink_noise(len(mix), rng) * np.float32(np.sqrt(power * 10 ** (-snr_db / 10)))
    return mix * np.float32(min(1.0, 0.99 / np.abs(mix).max()))


def _reverberate(track: np.ndarray, rt60_s: float | None, rng: np.random.Generator) -> np.ndarray:
    """Put a speaker somewhere in a room: reverberation 3-9 dB below the direct sound, beginning after 3-15 ms."""
    if rt60_s is None:
        return track
    from scipy.signal import fftconvolve

    time_s = np.arange(round(rt60_s * SAMPLING_RATE)) / SAMPLING_RATE
    tail = rng.standard_normal(time_s.size) * 10 ** (-3 * time_s / rt60_s)
    tail[: round(rng.uniform(0.003, 0.015) * SAMPLING_RATE)] = 0.0
    tail *= 10 ** (-rng.uniform(3, 9) / 20) / np.linalg.norm(tail)
    tail[0] = 1.0
    return fftconvolve(track, tail)[: len(track)].astype(np.float32)


def _pink_noise(num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Return noise of power 1 whose power falls with the frequency, from 50 Hz on."""
    spectrum = np.fft.rfft(rng.standard_normal(num_samples))
    frequency_hz = np.fft.rfftfreq(num_samples, 1 / SAMPLING_RATE)
    noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(frequency_hz, 50.0)), num_samples)
    return (noise / noise.std()).astype(np.float32)
