"""Training on a CPU with one memory allocator and with another: the same run of `sdiareward train`, step by step.

    python -m benchmarks.allocators --preload tcmalloc=/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4

Tensors of a step live as long as its backward pass, and have other sizes in the next step. Contestants are the C
library as it is, and each library that is preloaded. `small` learns pairs of the bundled sample by LoRA in bfloat16,
as its recipes do. Written to `benchmarks/results/allocators.json`: tokens a second of each part of the run, of all
after the first, and peak memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tqdm.auto import tqdm

from benchmarks import racing
from benchmarks.head_training import build_pairs
from sdiareward.common.arguments import parse_arguments


RESULT = racing.RESULTS / "allocators.json"
_PARTS = 8


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    preload: list[str] = field(default_factory=list, metadata={"help": "NAME=FILE of a library to preload"})
    model: str = field(default="small", metadata={"help": "model that is trained (default: small)"})
    episodes: int = field(default=24, metadata={"help": "recorded episodes of the sample; half as many scripts"})
    steps: int = field(default=40, metadata={"help": "training steps"})
    pairs_a_step: int = field(default=8, metadata={"help": "pairs of a step"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.allocators", description=__doc__)
    contestants: dict[str, dict[str, str]] = {"glibc": {}}
    for entry in args.preload:
        name, _, library = entry.partition("=")
        if not Path(library).is_file():
            raise FileNotFoundError(f"--preload {entry}: there is no file '{library}'; install it, or give its path.")
        contestants[name] = {"LD_PRELOAD": library}
    settings = {name: getattr(args, name) for name in ("model", "episodes", "steps", "pairs_a_step")}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        # As a file: a few of its pairs are held out, which training asks for.
        dataset = next(build_pairs(Path(folder), args.episodes).glob("data/modality/train-*.parquet"))
        for name, environment in tqdm(contestants.items(), desc="allocators"):
            run = Path(folder) / name
            found[name] = train(dataset, run, settings, environment)
            racing.write_result(args.output, settings=settings, cpu=racing.describe_cpu(), allocators=found)
    print(json.dumps(found, indent=2))


def train(dataset: Path, run: Path, settings: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Train in a process with variables of its own; return its speed by part of the run, and its peak memory."""
    config = run.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(make_recipe(dataset, run, settings)), encoding="utf-8")
    command = [sys.executable, "-m", "sdiareward.train", "--config", str(config)]
    process = subprocess.Popen(command, env={**os.environ, **environment})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(
            f"Training with {dict(environment) or 'the allocator as it is'} exits {process.returncode}."
        )
    (state,) = run.glob("checkpoint-*/trainer_state.json")
    logs = [entry for entry in json.loads(state.read_text(encoding="utf-8"))["log_history"] if "num_tokens" in entry]
    return {**summarise_logs(logs), "peak_memory_mib": round(usage.ru_maxrss / 1024)}


def make_recipe(dataset: Path, run: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `sdiareward train`."""
    return {
        "model_name_or_path": settings["model"],
        "dataset": str(dataset),
        "output_dir": str(run),
        "train": "lora",
        "save_compact": True,
        "max_steps": settings["steps"],
        "per_device_train_batch_size": settings["pairs_a_step"],
        "gradient_checkpointing": False,
        "bf16": True,
        "use_cpu": True,
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": settings["steps"],
        "logging_steps": max(1, settings["steps"] // _PARTS),
        "report_to": "none",
        "seed": 0,
    }


def summarise_logs(logs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tokens a second of the parts that a trainer logged, and of all of them together."""
    tokens = [after["num_tokens"] - before["num_tokens"] for before, after in zip(logs, logs[1:], strict=False)]
    rates = [entry["tokens_per_second"] for entry in logs]
    # The first part has the start of the run in it: its time is not that of its tokens alone.
    seconds = [number / rate for number, rate in zip(tokens, rates[1:], strict=True)]
    return {"tokens_per_second": rates, "after_the_first_part": round(sum(tokens) / sum(seconds), 1)}


if __name__ == "__main__":
    main()
