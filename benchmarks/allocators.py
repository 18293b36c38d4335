"""Training and scoring on a CPU with one memory allocator and with another.

    python -m benchmarks.allocators --preload tcmalloc=/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4
    python -m benchmarks.allocators --task score --preload tcmalloc=/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4

Tensors of a step live as long as its backward pass, and have other sizes in the next step. Contestants are the C
library as it is, and each library that is preloaded. `small` learns pairs of the bundled sample by LoRA in bfloat16,
as its recipes do, or scores them with `dtype="fast"`. Written to `benchmarks/results/allocators.json`: tokens a second
of each part of the run, of all after the first, and peak memory; to `allocators_scoring.json`: the seconds of scoring
in each round, without the start, and peak memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from tqdm.auto import tqdm, trange

from benchmarks import racing
from benchmarks.head_training import build_pairs
from sdiareward.common.arguments import parse_arguments


RESULTS = {
    "train": racing.RESULTS / "allocators.json",
    "score": racing.RESULTS / "allocators_scoring.json",
}
_PARTS = 8


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    preload: list[str] = field(default_factory=list, metadata={"help": "NAME=FILE of a library to preload"})
    model: str = field(default="small", metadata={"help": "model that is trained (default: small)"})
    episodes: int = field(default=24, metadata={"help": "recorded episodes of the sample; half as many scripts"})
    steps: int = field(default=40, metadata={"help": "training steps"})
    pairs_a_step: int = field(default=8, metadata={"help": "pairs of a step"})
    task: Literal["train", "score"] = field(default="train", metadata={"help": "what is measured"})
    rounds: int = field(default=3, metadata={"help": "rounds of scoring"})
    output: Path | None = field(default=None, metadata={"help": "file of the result (default: that of the task)"})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.allocators", description=__doc__)
    contestants: dict[str, dict[str, str]] = {"glibc": {}}
    for entry in args.preload:
        name, _, library = entry.partition("=")
        if not Path(library).is_file():
            raise FileNotFoundError(f"--preload {entry}: there is no file '{library}'; install it, or give its path.")
        contestants[name] = {"LD_PRELOAD": library}
    output = args.output or RESULTS[args.task]
    names = ("steps", "pairs_a_step") if args.task == "train" else ("rounds",)
    settings = {name: getattr(args, name) for name in ("model", "episodes", *names)}
    measure = train_each if args.task == "train" else score_each
    with tempfile.TemporaryDirectory() as folder:
        # As a file: a few of its pairs are held out, which training asks for.
        dataset = next(build_pairs(Path(folder), args.episodes).glob("data/modality/train-*.parquet"))
        # Written again and again: what one has done is kept if another one fails.
        for found in measure(dataset, Path(folder), settings, contestants):
            racing.write_result(output, settings=settings, cpu=racing.describe_cpu(), allocators=found)
    print(json.dumps(found, indent=2))


def train_each(
    dataset: Path, folder: Path, settings: Mapping[str, Any], contestants: Mapping[str, Mapping[str, str]]
) -> Iterator[dict[str, Any]]:
    """Train once with the variables of each contestant; give what was found after each."""
    found = {}
    for name, environment in tqdm(contestants.items(), desc="allocators"):
        found[name] = train(dataset, folder / name, settings, environment)
        yield found


def score_each(
    dataset: Path, folder: Path, settings: Mapping[str, Any], contestants: Mapping[str, Mapping[str, str]]
) -> Iterator[dict[str, Any]]:
    """Score in rounds with the variables of each contestant in turn; give what was found after each round."""
    found: dict[str, Any] = {name: {"seconds": [], "peak_memory_mib": []} for name in contestants}
    for number in trange(settings["rounds"], desc="rounds"):
        for name, environment in contestants.items():
            measured = score(dataset, folder / f"{name}-{number}", settings, environment)
            for key, value in measured.items():
                found[name][key].append(value)
        yield found


def train(dataset: Path, run: Path, settings: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Train in a process with variables of its own; return its speed by part of the run, and its peak memory."""
    config = run.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(make_recipe(dataset, run, settings)), encoding="utf-8")
    peak_memory_mib = _run(["sdiareward.train", "--config", str(config)], environment)
    (state,) = run.glob("checkpoint-*/trainer_state.json")
    logs = [entry for entry in json.loads(state.read_text(encoding="utf-8"))["log_history"] if "num_tokens" in entry]
    return {**summarise_logs(logs), "peak_memory_mib": peak_memory_mib}


def score(dataset: Path, folder: Path, settings: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Score in a process with variables of its own; return the seconds without its start, and its peak memory."""
    command = ["sdiareward.eval", "--model", settings["model"], "--dataset", str(dataset), "--dtype", "fast"]
    peak_memory_mib = _run([*command, "--no_baselines", "--output_dir", str(folder)], environment)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return {"seconds": results["timing"]["scoring_s"], "peak_memory_mib": peak_memory_mib}


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a module with more variables; return its peak memory in MiB."""
    process = subprocess.Popen([sys.executable, "-m", *command], env={**os.environ, **environment})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(
            f"{command[0]} with {dict(environment) or 'the allocator as it is'} exits {process.returncode}."
        )
    return round(usage.ru_maxrss / 1024)


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
