"""The dialogues of the speed measurements: real speech of the bundled sample, with its words.

Notable choices:

- A turn is a sequence of consecutive parts of recordings of one corpus, cut to a random length. No passage is used
  twice, so all clips and all dialogues are distinct.
- The clips are 16 kHz WAV files within the model's limit, so every contestant gets the same samples without
  resampling.
- `ManyDialogues` makes dialogues on access from recordings in memory: 10,000 dialogues need no more memory than 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.dataset_builder.episodes import Episode, Turn
from sdiareward.dataset_builder.sources import sample


TURN_COUNTS = (4, 6, 8)
TURN_RANGE_S = (2.0, 8.0)
_ROLES = ("user", "assistant")
_SHORTEST_CLIP_S = 0.1


@dataclass(frozen=True)
class Passage:
    """Speech and its words.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Mono, 16 kHz, float32.
        text (`str`): The words.
    """

    array: np.ndarray
    text: str

    def cut(self, num_samples: int) -> Passage:
        """Return the first samples, with the same share of the words."""
        words = self.text.split()
        kept = round(len(words) * min(1.0, num_samples / self.array.size))
        return Passage(self.array[:num_samples], " ".join(words[: max(kept, 1)]))


def write_dialogues(
    folder: Path,
    num_dialogues: int,
    *,
    seed: int = 0,
    max_turn_s: float = 30.0,
    turn_counts: Sequence[int] = TURN_COUNTS,
    turn_range_s: tuple[float, float] = TURN_RANGE_S,
) -> list[list[dict[str, Any]]]:
    """Write the clips of distinct dialogues and return their messages.

    Args:
        folder (`Path`): Where the WAV files go.
        num_dialogues (`int`): How many dialogues; the sample's 95 minutes are enough for about 150.
        seed (`int`, *optional*, defaults to 0): Draws the recordings, the numbers of turns and the lengths.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds that the model hears of a turn; the rest is cut.
        turn_counts (`Sequence[int]`, *optional*, defaults to 4, 6 and 8): Numbers of turns that are drawn from.
        turn_range_s (`tuple[float, float]`, *optional*, defaults to 2 and 8 s): Shortest and longest turn, uniform in
            between.

    Raises:
        ValueError: The sample holds too little speech for so many distinct dialogues.
    """
    rng = np.random.default_rng(seed)
    passages = _shuffled_passages(rng)
    folder.mkdir(parents=True, exist_ok=True)
    dialogues = []
    for number in range(num_dialogues):
        num_turns = int(rng.choice(turn_counts))
        lengths_s = rng.uniform(*turn_range_s, size=num_turns)
        try:
            turns = [_next_turn(passages, float(length_s)) for length_s in lengths_s]
        except StopIteration:
            raise ValueError(
                f"the sample's speech is used up after {number} dialogues of {num_dialogues}; ask for fewer."
            ) from None
        turns = [turn.cut(min(turn.array.size, round(max_turn_s * SAMPLING_RATE))) for turn in turns]
        dialogues.append([_write_turn(folder, number, index, turn) for index, turn in enumerate(turns)])
    return dialogues


def sample_dialogues() -> Iterator[list[dict[str, Any]]]:
    """Yield the episodes of the sample as messages."""
    for episode in sample.read_episodes():
        if isinstance(episode, Episode):
            array = read_audio(episode.turns[0].parts[0].audio, name=episode.name)
            yield [_whole_turn(index, array, turn) for index, turn in enumerate(episode.turns)]


def duration_s(dialogues: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Return the seconds of speech in dialogues."""
    from sdiareward.audio_sdiareward import audio_duration_s

    items = (item for dialogue in dialogues for turn in dialogue for item in turn["content"])
    return sum(audio_duration_s(item["audio"]) for item in items if "audio" in item)


class ManyDialogues(Sequence[list[dict[str, Any]]]):
    """Any number of distinct short dialogues of the sample's speech, generated on access.

    Args:
        num_dialogues (`int`): Number of dialogues.
        seed (`int`, *optional*, defaults to 0): Decides each dialogue together with its index.
        turn_range_s (`tuple[float, float]`, *optional*, defaults to `(0.5, 1.5)`): Shortest and longest of its two
            turns, uniform in between.
    """

    def __init__(self, num_dialogues: int, seed: int = 0, turn_range_s: tuple[float, float] = (0.5, 1.5)):
        self._num_dialogues = num_dialogues
        self._seed = seed
        self._turn_range_s = turn_range_s
        self._passages = [passage for passage in _passages() if passage.array.size > turn_range_s[1] * SAMPLING_RATE]

    def __len__(self) -> int:
        return self._num_dialogues

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"dialogue {index} of {len(self)}.")
        rng = np.random.default_rng((self._seed, index))
        return [
            _message(number, _clip(turn.array), turn.text)
            for number, turn in enumerate((self._draw(rng), self._draw(rng)))
        ]

    @property
    def duration_s(self) -> float:
        """Seconds of speech in all dialogues."""
        return sum(
            item["audio"]["array"].size / SAMPLING_RATE
            for dialogue in self
            for turn in dialogue
            for item in turn["content"][1:]
        )

    def _draw(self, rng: np.random.Generator) -> Passage:
        passage = self._passages[rng.integers(len(self._passages))]
        num_samples = round(rng.uniform(*self._turn_range_s) * SAMPLING_RATE)
        start = int(rng.integers(passage.array.size - num_samples + 1))
        return Passage(passage.array[start : start + num_samples], passage.cut(num_samples).text)


def _passages() -> Iterator[Passage]:
    """Yield the parts of the sample's recordings, in its order."""
    for episode in sample.read_episodes():
        if isinstance(episode, Episode):
            yield from _of_episode(episode)


def _of_episode(episode: Episode) -> Iterator[Passage]:
    parts = [part for turn in episode.turns for part in turn.parts]
    array = read_audio(parts[0].audio, name=episode.name)
    for part in parts:
        end = None if part.end_s is None else round(part.end_s * SAMPLING_RATE)
        cut = array[round(part.start_s * SAMPLING_RATE) : end]
        if cut.size > _SHORTEST_CLIP_S * SAMPLING_RATE:
            yield Passage(cut, part.text)


def _whole_turn(index: int, array: np.ndarray, turn: Turn) -> dict[str, Any]:
    start, end = turn.parts[0].start_s, turn.parts[-1].end_s
    spoken = array[round(start * SAMPLING_RATE) : None if end is None else round(end * SAMPLING_RATE)]
    return _message(index, _clip(spoken), " ".join(part.text for part in turn.parts))


def _shuffled_passages(rng: np.random.Generator) -> Iterator[Passage]:
    """Yield all parts, the recordings in random order."""
    episodes = [episode for episode in sample.read_episodes() if isinstance(episode, Episode)]
    for index in rng.permutation(len(episodes)):
        yield from _of_episode(episodes[index])


def _next_turn(passages: Iterator[Passage], length_s: float) -> Passage:
    """Join the next passages until they last `length_s` and cut them there."""
    num_samples = round(length_s * SAMPLING_RATE)
    joined = next(passages)
    while joined.array.size < num_samples:
        more = next(passages)
        joined = Passage(np.concatenate([joined.array, more.array]), f"{joined.text} {more.text}")
    return joined.cut(num_samples)


def _write_turn(folder: Path, dialogue: int, index: int, turn: Passage) -> dict[str, Any]:
    path = _write_wav(folder / f"{dialogue:03d}-{index}.wav", turn)
    return _message(index, str(path), turn.text)


def _write_wav(path: Path, passage: Passage) -> Path:
    import soundfile

    soundfile.write(path, passage.array, SAMPLING_RATE, subtype="PCM_16")
    return path


def _clip(array: np.ndarray) -> dict[str, Any]:
    return {"array": array, "sampling_rate": SAMPLING_RATE}


def _message(index: int, audio: Any, text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}, {"type": "audio", "audio": audio}]
    return {"role": _ROLES[index % 2], "content": content}
