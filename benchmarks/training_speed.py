"""Speed of training steps beside TRL's trainer with the library's processor: same pairs in every step, same losses.

    python -m benchmarks.training_speed
    python -m benchmarks.training_speed --steps 2 --rounds 1 --mean-s 4    # a quick look

Ways to train nano with a frozen audio tower on pairs of synthetic dialogues:

- `TRL`: `trl.RewardTrainer`; dialogues of a step are padded to the longest, clips to 300 s, as released, or to 30 s.
- `ours`: `SDiaRewardTrainer`; the audio tower runs in each step, or has encoded all clips before.

Every step takes the same pairs; on a GPU they are prepared once, as the workers of a data loader would meanwhile.
`gpu.py` measures the same at the real sizes. Utilisation counts the operations that the mode requires: the forward
pass once for frozen weights, twice if only gradients pass through, three times for trained weights.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import torch
from transformers import TrainerCallback
from trl import RewardConfig, RewardTrainer

from benchmarks import racing, scoring_speed, workloads
from benchmarks.racing import Record
from benchmarks.released import make_stock_processor, prepare
from sdiareward.checkpoint_io.adapters import add_adapters
from sdiareward.common.commands import parse_options
from sdiareward.perturbations.channel import encode_flac
from sdiareward.training.batches import PairCollator
from sdiareward.training.precompute import precompute_pairs
from sdiareward.training.trainer import SDiaRewardTrainer


TRL, OURS = "TRL, clips of 300 s", "ours"
ENCODED = "ours, audio encoded before"
# Passes over the text model that a mode requires, in forward passes.
_TEXT_PASSES = {"head": 1, "lora": 2, "full": 3}
# Of the first losses; precomputed vectors are in float16.
_TOLERANCE = {"float32": 1e-2, "bfloat16": 0.1}


@dataclass(kw_only=True)
class Arguments:
    model: str = "nano"
    mode: str = "full"
    # Per step, the same in every step; the first step of each round warms up.
    pairs: int = 4
    steps: int = 8
    rounds: int = 3
    mean_s: float = 12.0
    seed: int = 0
    output: Path = racing.RESULTS / "training_speed.json"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_options(Arguments, argv, prog="python -m benchmarks.training_speed", description=__doc__)
    racing.save_record(args.output, render, args.mode, args.model, **measure(args, encode=True))


def measure(args: Arguments, device: str = "cpu", dtype: str = "float32", *, encode: bool = False) -> Record:
    """Train in every way in turn, each from the same weights; with `encode` also on clips encoded before."""
    weights = torch.float32 if args.mode == "full" else getattr(torch, dtype)
    model, processor = workloads.load_model(args.model, args.seed, device, weights)
    dialogues = list(workloads.SyntheticDialogues(2 * args.pairs, args.seed, args.mean_s, processor.max_turn_s))
    prompted = [processor.with_prompt(dialogue).to_messages() for dialogue in (*dialogues[::2], *dialogues[1::2])]
    keep = (lambda collate: collate) if device == "cpu" else _prepare_once

    def make_model() -> Any:
        return _freeze(workloads.load_model(args.model, args.seed, device, weights)[0], args.mode)

    def train_plain(chunk_length_s: int) -> Callable[[], RewardTrainer]:
        stock = make_stock_processor(processor, chunk_length_s)

        def collate(_: Any) -> Any:
            inputs = prepare(stock, prompted)
            return {**inputs, "input_features": inputs["input_features"].to(weights)}

        options = {"processing_class": processor.tokenizer, "train_dataset": rows, "data_collator": keep(collate)}
        return lambda: _PlainTrainer(make_model(), config, **options)

    def train_ours(rows: Any) -> Callable[[], RewardTrainer]:
        collate = keep(PairCollator(processor))
        return lambda: SDiaRewardTrainer(make_model(), config, collate, rows, processing_class=processor)

    with tempfile.TemporaryDirectory() as folder:
        pairs, config = _make_pairs(dialogues), _make_config(args, folder, device)
        rows, _ = precompute_pairs(pairs, processor, Path(folder, "read"), split="train")
        lengths_s = dict.fromkeys((workloads.RELEASED_CHUNK_LENGTH_S, processor.feature_extractor.chunk_length))
        ways = {**{f"TRL, clips of {each} s": train_plain(each) for each in lengths_s}, OURS: train_ours(rows)}
        flops = workloads.count_flops(model, processor, dialogues, _TEXT_PASSES[args.mode])
        found = {**workloads.describe(model, dialogues), "flops": flops}
        if encode:
            encode_pairs = partial(precompute_pairs, pairs, processor, Path(folder, "encoded"), split="train")
            made = racing.measure(partial(encode_pairs, model=model))
            found["encoding_s"], (encoded, _) = made.seconds, made.result
            ways[ENCODED] = train_ours(encoded)
        del model
        runs = racing.time_rounds({way: lambda make=make: _run(make()) for way, make in ways.items()}, args.rounds)
    rate = scoring_speed.measure_matmul(dtype, device)
    step_s = {way: [run.result["step_s"] for run in each] for way, each in runs.items()}
    losses = {way: each[0].result["first_loss"] for way, each in runs.items()}
    if max(losses.values()) - min(losses.values()) > _TOLERANCE[dtype]:
        raise ValueError(f"the losses of the first step differ: {losses}.")
    return {
        "settings": {name: getattr(args, name) for name in ("pairs", "steps", "rounds", "mean_s", "seed")},
        **found,
        "tokens": runs[OURS][0].result["tokens"] / args.steps,
        "step_s": step_s,
        "first_loss": losses,
        "peak_mib": {way: max(run.peak_mib for run in each) for way, each in runs.items()},
        "matmul_flops_per_s": rate,
        "utilisation": {way: flops / median(times) / rate for way, times in step_s.items()},
    }


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self._ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        racing.wait_for_device()
        self._ends.append(time.perf_counter())

    def intervals(self, steps: int = 1) -> list[float]:
        """Return the seconds of each interval of steps without the first, which warms up."""
        return [after - before for before, after in pairwise(self._ends[steps - 1 :: steps])]


def _run(trainer: Any) -> Record:
    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    tokens = float(trainer._total_train_tokens)
    return {"first_loss": losses[0], "tokens": tokens, "step_s": median(clock.intervals())}


def _make_pairs(dialogues: Sequence[Any]) -> datasets.Dataset:
    def write(turn: Any) -> Any:
        text, clip = turn["content"]
        audio = {"bytes": encode_flac(clip["audio"]["array"]), "path": None}
        return {"role": turn["role"], "text": text["text"], "audio": audio}

    sides = [[write(turn) for turn in dialogue] for dialogue in dialogues]
    return datasets.Dataset.from_dict({"chosen": sides[::2], "rejected": sides[1::2]})


def _make_config(args: Arguments, folder: str, device: str) -> RewardConfig:
    on_gpu = device != "cpu"
    return RewardConfig(
        output_dir=folder,
        max_steps=args.steps,
        per_device_train_batch_size=args.pairs,
        center_rewards_coefficient=0.01,
        gradient_checkpointing=on_gpu and args.mode != "head",
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=on_gpu,
        use_cpu=not on_gpu,
        remove_unused_columns=False,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        seed=args.seed,
    )


def _freeze(model: Any, mode: str) -> Any:
    if mode == "head":
        model.freeze_backbone()
    else:
        model.freeze_audio_tower()
    return add_adapters(model, r=16, alpha=32) if mode == "lora" else model


class _PlainTrainer(RewardTrainer):
    """TRL's trainer, with rows that only the collator reads."""

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset


def _prepare_once(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    kept: dict[str, Any] = {}

    def repeat(rows: Any) -> Any:
        kept["batch"] = kept.get("batch") or collate(rows)
        return copy.copy(kept["batch"])

    return repeat


def render(records: list[Record]) -> str:
    return "\n\n".join(map(render_steps, racing.group_records(records))) + "\n"


def render_steps(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        steps = dict(record["step_s"])
        if ENCODED in steps:
            first_epoch = [seconds + record["encoding_s"] for seconds in steps[ENCODED]]
            steps[f"{ENCODED}, in the first epoch"] = first_epoch
        for way, times in steps.items():
            optional = {
                "{:.0%}": record["utilisation"].get(way),
                "{:,} MiB": record["peak_mib"].get(way),
                "{:.3f}": record["first_loss"].get(way),
                "{:.1f}": racing.speedup(steps[TRL], times),
            }
            speed = (f"{median(times):.2f} s", f"{record['tokens'] / median(times):,.0f}")
            rows.append((f"{record['model']}, {record['part']}, {way}", *speed, *racing.format_cells(optional)))
    columns = ("a step", "tokens/s", "of matmul speed", "peak memory", "first loss", f"speed-up over {TRL}")
    return racing.make_table(("training", *columns), rows, records)


if __name__ == "__main__":
    main()
