"""Score recorded conversations with and without their sound: is it the recordings that a model fails on?

    python -m benchmarks.words_alone --dataset runs/open/sdiareward --split validation \
        --models small_excerpts=runs/small_excerpts/adapter small_games=runs/small_games/adapter --dtype fast

The pairs of `context` whose sides are recordings are scored as they are, and with their transcripts alone. Where words
and sound order no fewer pairs than the words alone, the recordings are not what is missing. Pairs of `rhythm` stand
beside them: both sides say the same, and sound alone can order them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import racing
from benchmarks.hearing import compute_share, without_sound
from sdiareward import Scorer
from sdiareward.common.arguments import parse_arguments
from sdiareward.dataset_builder.pairing.families import OTHER_TRANSCRIPT
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import JOINT, SIDES


RESULT = racing.RESULTS / "words_alone.json"
ALL = "all answers"
_FORMS: dict[str, Callable[[Any], Any]] = {"whole": list, "words": without_sound}


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    dataset: Path = field(metadata={"help": "folder of pairs, of which `joint` is used"})
    models: list[str] = field(metadata={"help": "NAME=MODEL for each model"})
    split: str = field(default="validation", metadata={"help": "split of the pairs"})
    dtype: str | None = field(default=None, metadata={"help": "dtype of the model (default: the checkpoint's)"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def is_used(label: Mapping[str, Any]) -> bool:
    """Tell whether a pair is of recorded conversations, or of rhythm."""
    return label["primary"] == "rhythm" or is_recorded_conversation(label)


def is_recorded_conversation(label: Mapping[str, Any]) -> bool:
    """Tell whether a pair of `context` has recordings on both sides."""
    return label["primary"] == "context" and label["synthesizer"] == "recording"


def name_groups(label: Mapping[str, Any]) -> list[str]:
    """Return the rows of the table that count a pair."""
    kind = label["secondary"]
    if label["primary"] == "rhythm" or kind == OTHER_TRANSCRIPT:
        return [kind]
    return [kind, ALL]


def group_rows(pairs: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the numbers of the pairs that each row of the table counts, by the name of the row."""
    groups = defaultdict(list)
    for number, pair in enumerate(pairs):
        for group in name_groups(pair):
            groups[group].append(number)
    return dict(sorted(groups.items()))


def measure(
    scorer: Scorer, pairs: Sequence[Mapping[str, Any]], forms: Sequence[str] = tuple(_FORMS)
) -> dict[str, dict[str, Any]]:
    """Return the shares of the pairs that are ordered, by group, as they are (`whole`) and by their `words`."""
    whole = [turns_to_messages(pair[side]) for pair in pairs for side in SIDES]
    groups = group_rows(pairs)
    found: dict[str, dict[str, Any]] = {group: {"num_pairs": len(rows)} for group, rows in groups.items()}
    for form in forms:
        dialogues = [_FORMS[form](dialogue) for dialogue in whole]
        rewards = np.array(scorer.score(dialogues, criterion=JOINT)).reshape(-1, len(SIDES))
        for group, row in found.items():
            row[form] = compute_share(rewards[groups[group]])
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.words_alone", description=__doc__)
    pairs = load_pairs(args.dataset, args.split, name=JOINT).filter(is_used)
    found = {}
    for given in args.models:
        name, _, model = given.partition("=")
        found[name] = measure(Scorer.from_pretrained(model, dtype=args.dtype), pairs)
    racing.write_result(args.output, split=args.split, num_pairs=len(pairs), dtype=args.dtype, models=found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
