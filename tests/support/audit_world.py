"""Pairs for the tests of the audit, small enough that a tiny model scores them in no time."""

import datasets
import numpy as np

from sdiareward.perturbations.channel import encode
from sdiareward.perturbations.decoded_pairs import AuditPair, Turn


RATE = 16_000
SUBSETS = ("scripted", "colloquialness", "semi_wild")


def make_turns(level, *, num_turns=2, num_samples=1600):
    return [
        Turn(("user", "assistant")[number % 2], f"so, um {number}", np.full(num_samples, level, dtype=np.float32))
        for number in range(num_turns)
    ]


def make_pair(name, chosen, rejected, *, subset="scripted", group=None, **turns):
    criterion = "colloquialness" if subset == "colloquialness" else "modality"
    sides = make_turns(chosen, **turns), make_turns(rejected, **turns)
    return AuditPair(name, criterion, subset, "source", "flite", group, "CC0-1.0", *sides)


def make_label(pair_id, *, subset="scripted", group=None, synthesizer="flite"):
    criterion = "colloquialness" if subset == "colloquialness" else "modality"
    label = {"pair_id": pair_id, "criterion": criterion, "subset": subset, "source": "source"}
    return {**label, "synthesizer": synthesizer, "group_id": group}


def make_reader(pairs, broken=()):
    """Return a function that gives a pair by its id; `broken` are the ids of those that cannot be read."""
    by_id = {pair.pair_id: pair for pair in pairs}

    def read(pair_id):
        if pair_id in broken:
            raise FileNotFoundError(f"{pair_id}: no such audio file.")
        return by_id[pair_id]

    return read


def loudness(dialogues, criteria):
    """A reward that a hand can compute: the mean of the first sample of each recording."""
    return [
        float(np.mean([item["audio"]["array"][0] for message in dialogue for item in message["content"][-1:]]))
        for dialogue in dialogues
    ]


class FunctionScorer:
    """Score dialogues one by one with a function of them; what it raises is the reason to skip a dialogue."""

    audio_s = 0.0

    def __init__(self, function=loudness, stop_after=None):
        self.function, self.stop_after = function, stop_after
        self.num_dialogues = 0

    def iter_scores(self, dialogues, criteria, *, skipped, heard):
        if self.stop_after is not None and self.num_dialogues >= self.stop_after:
            raise KeyboardInterrupt
        for index, dialogue in enumerate(dialogues):
            self.num_dialogues += 1
            try:
                (reward,) = self.function([dialogue], [criteria[index]])
            except ValueError as error:
                skipped[index] = str(error)
            else:
                yield index, reward


def make_dataset(make_tone, num_pairs, *, first=0):
    """Return pairs of a low chosen and a high rejected tone."""
    rows = []
    for row in range(first, first + num_pairs):
        subset = SUBSETS[row % len(SUBSETS)]
        rows.append(
            {
                "pair_id": f"p{row}",
                "criterion": "colloquialness" if subset == "colloquialness" else "modality",
                "subset": subset,
                "source": "tones",
                "synthesizer": ("flite", "espeak-ng")[row % 2],
                "group_id": f"g{row}",
                "license": "CC0-1.0",
                "chosen": _side(make_tone, row, 200.0, "so, um"),
                "rejected": _side(make_tone, row, 900.0, "so, um" + ", that is" * (subset == "colloquialness")),
            }
        )
    return datasets.Dataset.from_list(rows)


def _side(make_tone, row, frequency_hz, text):
    turns = []
    for turn, role in enumerate(("user", "assistant", "user", "assistant")):
        tone = make_tone(0.12, frequency_hz + 40 * turn, row)
        wav = encode(tone, RATE, "WAV", "PCM_16", None)
        turns.append({"role": role, "text": f"{text} {row} {turn}", "audio": {"bytes": wav, "path": None}})
    return turns


def write_data(make_tone, folder):
    folder.mkdir(parents=True)
    for split, count, first in (("train", 6, 100), ("test", 6, 0)):
        make_dataset(make_tone, count, first=first).to_parquet(folder / f"{split}.parquet")
    return folder
