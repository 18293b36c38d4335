"""What more dialogues would teach: the same training on the words of a part of the dialogues, and of all of them.

    python -m benchmarks.learning_curve --dataset runs/open/sdiareward --tested_on runs/transcripts/sdiareward

For each share of the recordings and scripts, adapters learn the words of their dialogues alone, in as many steps and
on about as many pairs whatever the share: with fewer dialogues, each is cut and broken in more ways. Then they order
the words of recorded conversations that no share has. Rows that still rise at the last share are kept down by the
number of dialogues; rows that do not are kept down by something else.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import yaml
from tqdm.auto import tqdm

from benchmarks import racing
from benchmarks.words_alone import is_recorded_conversation, measure
from sdiareward import Scorer
from sdiareward.cli import main as run_command
from sdiareward.common.arguments import parse_arguments
from sdiareward.pairs.loading import load_pairs, name_pairs
from sdiareward.pairs.schema import JOINT
from sdiareward.training.written_pairs import make_written_pairs


RESULT = racing.RESULTS / "learning_curve.json"
RECIPE = racing.ROOT / "configs" / "small_words.yaml"
KINDS = ("last_answer", "near_answer", "order", "all_answers")


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    dataset: Path = field(metadata={"help": "folder of pairs, of whose training dialogues a share is used"})
    tested_on: Path = field(metadata={"help": "folder of pairs, of which the recorded conversations are ordered"})
    model: str = field(default="runs/small_alignment", metadata={"help": "model before it learns from pairs"})
    shares: list[float] = field(
        default_factory=lambda: [1 / 16, 1 / 4, 1.0], metadata={"help": "shares of the groups"}
    )
    steps: int = field(default=120, metadata={"help": "training steps for each share"})
    batch_size: int = field(default=8, metadata={"help": "pairs of a step"})
    split: str = field(default="validation", metadata={"help": "split that is ordered"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def is_tested(label: Mapping[str, Any]) -> bool:
    """Tell whether a pair is of recorded conversations, and broken in a way that the training has."""
    return is_recorded_conversation(label) and label["secondary"] in KINDS


def draw_dialogues(pairs: datasets.Dataset, share: float, seed: int = 0) -> datasets.Dataset:
    """Return the pairs of a share of the groups; those of a smaller share are among those of a larger one."""
    groups = sorted(set(pairs["group_id"]))
    drawn = np.random.default_rng(seed).permutation(len(groups))[: math.ceil(share * len(groups))]
    kept = {groups[number] for number in drawn}
    return pairs.select([row for row, group in enumerate(pairs["group_id"]) if group in kept])


def write_pairs(pairs: datasets.Dataset, share: float, path: Path) -> dict[str, int]:
    """Write pairs of the words of a share of the dialogues; return the numbers of groups, dialogues and pairs."""
    drawn = draw_dialogues(pairs, share)
    # The fewer dialogues, the more pairs of each.
    kinds = list(KINDS) * round(1 / share)
    made = list(make_written_pairs(drawn, name_pairs(drawn), kinds, seed=0))
    datasets.Dataset.from_list([pair for _, pair in made]).to_parquet(path)
    num_dialogues = len({row for row, _ in made})
    return {"num_groups": len(set(drawn["group_id"])), "num_dialogues": num_dialogues, "num_pairs": len(made)}


def train(pairs: Path, folder: Path, args: Arguments) -> Path:
    """Train adapters as the recipe says; return the folder of the model."""
    own = {
        "model_name_or_path": args.model,
        "dataset": str(pairs),
        "output_dir": str(folder),
        "max_steps": args.steps,
        "per_device_train_batch_size": args.batch_size,
        "save_strategy": "no",
        "max_eval_samples": args.batch_size,
    }
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    kept = {key: value for key, value in recipe.items() if key not in ("adapter_name_or_path", "written_negatives")}
    config = folder.with_suffix(".yaml")
    config.write_text(yaml.safe_dump({**kept, **own}), encoding="utf-8")
    if code := run_command(["train", "--config", str(config)]):
        raise RuntimeError(f"sdiareward train --config {config} exits {code}.")
    return folder


def measure_share(
    share: float, pairs: Mapping[str, datasets.Dataset], tested: Sequence[Mapping[str, Any]], args: Arguments
) -> dict[str, Any]:
    """Train on a share of the dialogues; return its numbers, and the shares of the tested pairs that are ordered."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "pairs"
        written.mkdir()
        numbers = write_pairs(pairs["train"], share, written / "train.parquet")
        write_pairs(pairs["validation"], 1, written / "validation.parquet")
        model = train(written, Path(folder) / "model", args)
        scorer = Scorer.from_pretrained(str(model), dtype="fast")
        return {"share": share, **numbers, "kinds": measure(scorer, tested, forms=["words"])}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.learning_curve", description=__doc__)
    pairs = {split: load_pairs(args.dataset, split, name=JOINT) for split in ("train", "validation")}
    tested = load_pairs(args.tested_on, args.split, name=JOINT).filter(is_tested)
    settings = {name: getattr(args, name) for name in ("steps", "batch_size", "split")}
    found = []
    # Written again and again: what one share has found is kept if another one fails.
    for share in tqdm(args.shares, desc="shares"):
        found.append(measure_share(share, pairs, tested, args))
        racing.write_result(args.output, settings=settings, cpu=racing.describe_cpu(), shares=found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
