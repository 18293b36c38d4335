"""How long four stages of `small` take: some steps of their recipes, and what all steps take at that speed.

    sdiareward build --config configs/data_open.yaml
    sdiareward build-model small runs/small_untrained --untrained
    python -m benchmarks.stage_times --steps 24
    python -m benchmarks.stage_times --output benchmarks/results/stage_times_whole.json \
        --finished small_other_voices_again=runs/small_other_voices_again/run.json

The recipes name the folders that they read and write, as the guide on training has them: start where `runs` has no
stage yet. Reading and encoding the recordings, before the steps, and validation after them take minutes more. With
`--finished` nothing is run: runs that have ended are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import racing
from sdiareward import cli
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.yaml_files import read_yaml


RESULT = racing.RESULTS / "stage_times.json"
STAGES = {"small_alignment": "align", "small": "train", "small_words": "train", "small_excerpts": "train"}


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    steps: int = field(default=24, metadata={"help": "steps of each stage", "minimum": 1})
    finished: list[str] = field(
        default_factory=list, metadata={"help": "NAME=run.json of stages that have ended, to read instead"}
    )
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.stage_times", description=__doc__)
    if args.finished:
        stages = {name: read_finished(Path(path)) for name, path in (entry.split("=", 1) for entry in args.finished)}
        racing.write_result(args.output, stages=stages)
    else:
        configs = {name: racing.ROOT / "configs" / f"{name}.yaml" for name in STAGES}
        stages = {name: measure(command, configs[name], args.steps) for name, command in STAGES.items()}
        racing.write_result(args.output, cpu=racing.describe_cpu(), stages=stages)
    print(json.dumps(stages, indent=2))


def read_finished(path: Path) -> dict[str, Any]:
    """Return what [`measure`] does of the `run.json` of a whole stage: all of its steps are measured."""
    run = json.loads(path.read_text(encoding="utf-8"))
    return extrapolate(run["history"], run["training"]["max_steps"], run["training"]["per_device_train_batch_size"])


def measure(command: str, config: Path, steps: int) -> dict[str, Any]:
    """Run some steps of a stage, and return what they took and what all of its steps would take.

    Args:
        command (`str`): `align` or `train`.
        config (`Path`): The recipe.
        steps (`int`): Steps to run.

    Returns:
        `dict`: `steps` of the recipe, `measured_steps`, `pairs_a_step` (of `align`, clips), `step_s`, and `hours` of
        all steps.

    Raises:
        RuntimeError: The command failed.
    """
    recipe = read_yaml(config)
    size = recipe["per_device_train_batch_size"]
    # One is validated on: no more is wanted of these runs than their steps.
    fewer = ["--max_clips", str(steps * size)] if command == "align" else ["--max_eval_samples", "1"]
    if cli.main([command, "--config", str(config), "--max_steps", str(steps), *fewer]):
        raise RuntimeError(f"sdiareward {command} --config {config} failed; see above.")
    run = json.loads((Path(recipe["output_dir"]) / "run.json").read_text(encoding="utf-8"))
    return extrapolate(run["history"], recipe.get("max_steps") or recipe["max_clips"] // size, size)


def extrapolate(history: Sequence[dict[str, Any]], steps: int, pairs_a_step: int) -> dict[str, Any]:
    """Return what `measure` does, of a run's history and the steps of the recipe."""
    summary = next(line for line in reversed(history) if "train_runtime" in line)
    step_s = summary["train_runtime"] / summary["step"]
    return {
        "steps": steps,
        "measured_steps": summary["step"],
        "pairs_a_step": pairs_a_step,
        "step_s": round(step_s, 3),
        "hours": round(steps * step_s / 3600, 2),
    }


if __name__ == "__main__":
    main()
