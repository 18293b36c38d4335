"""Train and evaluate the nano recipes, head, LoRA and full, with several seeds, on the open data set.

    python -m sdiareward.dataset_builder build --config configs/data_full.yaml
    python -m benchmarks.recipes

Each run is `train.py` with its recipe and `eval.py` on the test split, in processes of their own; checkpoints are
selected by validation loss. The seed decides the initial text model and the order of the pairs. Finished runs are
skipped; interrupted training resumes from its newest checkpoint, evaluation from its last pair. Results are written
after each run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from benchmarks import racing
from sdiareward.common.arguments import parse_arguments


RESULT = racing.RESULTS / "recipes_nano.json"
RECIPES = {"head": "nano_head", "lora": "nano_lora", "full": "nano"}


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    modes: list[str] = field(
        default_factory=lambda: list(RECIPES), metadata={"choices": list(RECIPES), "help": "what is trained"}
    )
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "seeds of the runs"})
    dataset: str = field(default="runs/full/sdiareward", metadata={"help": "folder of the pairs"})
    work_dir: Path = field(default=Path("runs/recipes"), metadata={"help": "folder of the runs"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})
    train_flags: list[str] = field(
        default_factory=list, metadata={"nargs": argparse.REMAINDER, "help": "passed to train.py"}
    )


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.recipes", description=__doc__)
    runs: list[dict[str, Any]] = []
    for seed, mode in tqdm([(seed, mode) for seed in args.seeds for mode in args.modes], desc="runs"):
        folder = args.work_dir / f"{mode}_{seed}"
        train(mode, seed, args.dataset, folder, args.train_flags)
        evaluate(args.dataset, folder)
        runs.append(summarise_run(mode, seed, folder))
        racing.write_result(args.output, cpu=racing.describe_cpu(), runs=runs, baselines=read_baselines(folder))
    print(json.dumps(runs, indent=2))


def train(mode: str, seed: int, dataset: str, folder: Path, flags: Sequence[str] = ()) -> None:
    """Train one recipe in its own process, unless finished."""
    if (folder / "run.json").exists():
        return
    recipe = racing.ROOT / "configs" / f"{RECIPES[mode]}.yaml"
    options = ("--dataset", dataset, "--output_dir", folder, "--seed", seed, "--resume", True, *flags)
    _run("sdiareward.train", "--config", recipe, *options)


def evaluate(dataset: str, folder: Path) -> None:
    """Evaluate a trained model in its own process, unless finished."""
    if not (folder / "eval" / "results.json").exists():
        _run("sdiareward.eval", "--model", folder, "--dataset", dataset, "--output_dir", folder / "eval")


def _run(module: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], cwd=racing.ROOT, check=True)


def summarise_run(mode: str, seed: int, folder: Path) -> dict[str, Any]:
    """Summarise a finished run.

    Args:
        mode (`str`): One of `RECIPES`.
        seed (`int`): Seed of the run.
        folder (`Path`): Folder of the run.
    """
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    results = json.loads((folder / "eval" / "results.json").read_text(encoding="utf-8"))
    history = run["history"]
    evaluations = [line["eval_loss"] for line in history if "eval_loss" in line]
    return {
        "mode": mode,
        "seed": seed,
        "learning_rate": run["training"]["learning_rate"],
        "epochs": run["training"]["num_train_epochs"],
        "steps": max(line["step"] for line in history),
        "train_runtime_s": next(line["train_runtime"] for line in reversed(history) if "train_runtime" in line),
        "best_validation_loss": min(evaluations),
        "num_skipped_pairs": run["num_skipped_pairs"],
        "accuracies": results["accuracies"]["model"],
        "by_synthesizer": results["by_synthesizer"],
        "left_out_synthesizers": results["left_out_synthesizers"],
    }


def read_baselines(folder: Path) -> Mapping[str, Any]:
    """Return the accuracies of the baselines, which are the same for every run."""
    results = json.loads((folder / "eval" / "results.json").read_text(encoding="utf-8"))
    return {name: found for name, found in results["accuracies"].items() if name != "model"}


if __name__ == "__main__":
    main()
