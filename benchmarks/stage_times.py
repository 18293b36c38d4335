"""How long the stages of `small` take: short runs of their recipes, and what all of their steps take at that speed.

    sdiareward build --config configs/data_open.yaml
    sdiareward build-model small runs/small_untrained --untrained
    python -m benchmarks.stage_times --steps 24

The recipes name the folders that they read and write, as the guide on training has them: start where `runs` has no
stage yet. A recipe without `max_steps` is run to its end.
"""

from __future__ import annotations

import json
import time
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

    steps: int = field(default=24, metadata={"help": "steps of each stage that has max_steps", "minimum": 1})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.stage_times", description=__doc__)
    configs = {name: racing.ROOT / "configs" / f"{name}.yaml" for name in STAGES}
    stages = {name: measure(command, configs[name], args.steps) for name, command in STAGES.items()}
    racing.write_result(args.output, cpu=racing.describe_cpu(), stages=stages)
    print(json.dumps(stages, indent=2))


def measure(command: str, config: Path, steps: int) -> dict[str, Any]:
    """Run a stage, and return what it took and what all of its steps would take.

    Args:
        command (`str`): `align` or `train`.
        config (`Path`): The recipe.
        steps (`int`): Steps to run if the recipe has `max_steps`.

    Returns:
        `dict`: `steps` of the recipe and `measured_steps`; `step_s`; `other_s`, the seconds of what does not depend on
        the steps, such as encoding the recordings; and `hours` of all steps.

    Raises:
        RuntimeError: The command failed.
    """
    recipe = read_yaml(config)
    limit = [] if "max_steps" not in recipe else ["--max_steps", str(steps)]
    start = time.perf_counter()
    if cli.main([command, "--config", str(config), *limit]):
        raise RuntimeError(f"sdiareward {command} --config {config} failed; see above.")
    wall_s = time.perf_counter() - start
    run = json.loads((Path(recipe["output_dir"]) / "run.json").read_text(encoding="utf-8"))
    return extrapolate(run["history"], wall_s, recipe.get("max_steps"))


def extrapolate(history: Sequence[dict[str, Any]], wall_s: float, max_steps: int | None) -> dict[str, Any]:
    """Return what `measure` does, of a run's history, its seconds in all and the steps of the recipe."""
    summary = next(line for line in reversed(history) if "train_runtime" in line)
    steps = max_steps or summary["step"]
    step_s = summary["train_runtime"] / summary["step"]
    other_s = wall_s - summary["train_runtime"]
    return {
        "steps": steps,
        "measured_steps": summary["step"],
        "step_s": round(step_s, 3),
        "other_s": round(other_s, 1),
        "hours": round((other_s + steps * step_s) / 3600, 2),
    }


if __name__ == "__main__":
    main()
