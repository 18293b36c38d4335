"""Measure an epoch of head training on cached features against one through the frozen backbone.

Both use the same nano checkpoint, pairs of the bundled sample, trainer and batches; they run in turn and the medians
are compared. The load average before each run is recorded, to detect other users of the machine. Also measured: the
effect of the dtype of stored hidden states on rewards, and an epoch at the size of the paper, 11,630 pairs of random
vectors of 3,584 numbers in a cache on disk.

Run `python -m benchmarks.head_training`; it writes `benchmarks/results/head_training.json`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import datasets
import torch
import yaml
from transformers import TrainerCallback
from trl import RewardConfig

from benchmarks.racing import RESULTS, write_result
from sdiareward.checkpoint_io.fingerprint import fingerprint_model
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.package_files import NANO
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.feature_shards import FeatureShards
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.batches import PairCollator
from sdiareward.training.head import FeatureCollator, SDiaRewardHead, cache_pairs
from sdiareward.training.precompute import precompute_pairs
from sdiareward.training.trainer import SDiaRewardTrainer


RESULT = RESULTS / "head_training.json"
_NUM_PAPER_PAIRS = 11_630
_PAPER_HIDDEN_SIZE = 3584
_EPOCHS_FROM_CACHE = 20
_BATCH_SIZE = {"nano": 4, "paper": 32}
_NUM_THREADS = torch.get_num_threads()


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    episodes: int = field(default=24, metadata={"help": "recorded episodes of the sample; half as many scripts"})
    repeats: int = field(default=5, metadata={"help": "paired runs"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> int:
    """Measure and write the result; return 1 when the goal of 100 times is missed."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.head_training", description=__doc__)
    with tempfile.TemporaryDirectory() as folder:
        # First, because it reports peak memory.
        paper_size = measure_paper_size(Path(folder), args.seed)
        pairs = load_pairs(build_pairs(Path(folder), args.episodes), "train")
        model, processor = SDiaRewardModel.from_pretrained(NANO), SDiaRewardProcessor.from_pretrained(NANO)
        result = {
            "nano": measure_nano(model, processor, pairs, Path(folder), args.repeats, args.seed),
            "stored_dtypes": measure_dtypes(model, processor, pairs, Path(folder)),
            "paper_size": paper_size,
        }
    write_result(args.output, arguments={**vars(args), "output": args.output.name}, result=result)
    print(json.dumps(result, indent=2))
    return 0 if result["nano"]["times_faster"] >= 100 else 1


@dataclass
class _EpochClock(TrainerCallback):
    """Measure the seconds of each epoch, without setup and teardown."""

    seconds: list[float] = field(default_factory=list)
    start: float = 0.0

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = time.perf_counter()

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.start)


def training_config(folder: Path, **options: Any) -> RewardConfig:
    """Return the arguments of a training on a CPU that saves nothing; `options` override them."""
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "center_rewards_coefficient": 0.01,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 10,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return RewardConfig(**{**defaults, **options})


def time_epochs(
    model: Any,
    processor: Any,
    collator: Any,
    rows: Any,
    *,
    folder: Path,
    epochs: int,
    batch_size: int,
    seed: int,
    num_threads: int = _NUM_THREADS,
) -> list[float]:
    """Train with the number of threads of `train.py`, and return the seconds of each epoch."""
    torch.set_num_threads(num_threads)
    training = training_config(
        folder, num_train_epochs=epochs, per_device_train_batch_size=batch_size, learning_rate=1e-3, seed=seed
    )
    clock = _EpochClock()
    trainer = SDiaRewardTrainer(
        model, processor, training, train_dataset=rows, data_collator=collator, callbacks=[clock]
    )
    trainer.train()
    return clock.seconds


def open_cache(folder: Path, config: SDiaRewardConfig, processor: SDiaRewardProcessor, **options: Any) -> FeatureCache:
    """Open the cache of the nano checkpoint's features."""
    return FeatureCache(folder / "cache", config, processor, model_revision=fingerprint_model(str(NANO)), **options)


def measure_nano(
    model: SDiaRewardModel, processor: SDiaRewardProcessor, pairs: Any, folder: Path, repeats: int, seed: int
) -> dict[str, Any]:
    """Time epochs on the sample's pairs through the backbone and from caches, in turn.

    Args:
        model ([`SDiaRewardModel`]): The nano model.
        processor ([`SDiaRewardProcessor`]): Its processor.
        pairs (`datasets.Dataset`): What to train on.
        folder (`Path`): For the caches.
        repeats (`int`): How often each is run.
        seed (`int`): Of the order of the pairs.
    """
    model.freeze_backbone()
    heads, collators, rows = {}, {}, {}
    filling: dict[str, float] = {}
    starting: dict[str, float] = {}
    for mode in ("mean", "attention"):
        heads[mode] = SDiaRewardHead(SDiaRewardConfig.from_pretrained(NANO, pooling_mode=mode))
        cache = open_cache(folder, heads[mode].config, processor, per_token=mode == "attention")
        collators[mode] = FeatureCollator(cache)
        for seconds_by_mode in (filling, starting):
            start = time.perf_counter()
            rows[mode] = cache_pairs({"train": pairs}, cache, lambda: Scorer(model, processor))[0]["train"]
            seconds_by_mode[mode] = round(time.perf_counter() - start, 3)
    seconds: dict[str, list[float]] = {"backbone": [], "mean": [], "attention": []}
    timed = partial(time_epochs, folder=folder / "run", batch_size=_BATCH_SIZE["nano"], seed=seed)
    loads = []
    through, _ = precompute_pairs(pairs, processor, folder / "rows", split="train")
    for _ in range(repeats):
        loads.append(round(os.getloadavg()[0], 1))
        seconds["backbone"] += timed(model, processor, PairCollator(processor), through, epochs=1)
        for mode, head in heads.items():
            num_threads = 1 if mode == "mean" else _NUM_THREADS
            epochs = timed(
                head, processor, collators[mode], rows[mode], epochs=_EPOCHS_FROM_CACHE, num_threads=num_threads
            )
            seconds[mode].append(median(epochs))
    ratios = [slow / fast for slow, fast in zip(seconds["backbone"], seconds["mean"], strict=True)]
    return {
        "pairs": len(rows["mean"]),
        "batch_size": _BATCH_SIZE["nano"],
        "epoch_s": {name: _rounded(values) for name, values in seconds.items()},
        "filling_s": filling,
        "starting_on_a_full_cache_s": starting,
        "times_faster": round(median(ratios), 1),
        "load_average_before_each_run": loads,
        "times_faster_each_run": [round(ratio, 1) for ratio in ratios],
    }


def measure_dtypes(model: SDiaRewardModel, processor: SDiaRewardProcessor, pairs: Any, folder: Path) -> dict[str, Any]:
    """Return by dtype of stored hidden states the error of rewards from them, and their bytes per pair."""
    sides, criteria = Dialogues(pairs, range(len(pairs))), [name for name in pairs["criterion"] for _ in SIDES]
    scorer = Scorer(model, processor)
    torch.set_num_threads(_NUM_THREADS)
    expected = torch.tensor(scorer.score(sides, criteria))
    result: dict[str, Any] = {}
    for dtype in ("float32", "float16", "bfloat16"):
        cache = open_cache(folder, model.config, processor, per_token=True, stored_dtype=dtype)
        features = [cache[str(key)][None] for key in cache.fill(scorer, sides, criteria)]
        with torch.inference_mode():
            rewards = [model.reward(model.pooler(each, torch.ones(each.shape[:2]))).item() for each in features]
        result[dtype] = {
            "max_reward_error": (torch.tensor(rewards) - expected).abs().max().item(),
            "bytes_a_pair": round(sum(each.nbytes for each in features) / len(pairs)),
        }
    return {"reward_standard_deviation": expected.std().item(), **result}


def _rounded(values: list[float]) -> dict[str, Any]:
    return {"median": round(median(values), 4), "runs": [round(value, 4) for value in values]}


def build_pairs(folder: Path, episodes: int) -> Path:
    """Build a data set from the bundled sample and return its folder."""
    settings = {
        "output_dir": str(folder / "sdiareward"),
        "sources": [{"name": "sample", "limit": episodes}, {"name": "colloquial_scripts", "limit": episodes // 2}],
        "synthesizers": {"modality": {"seen": ["hibari"]}, "colloquialness": {"seen": ["hibari"]}},
    }
    config = folder / "build.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [sys.executable, "-m", "sdiareward.dataset_builder", "build", "--config", str(config)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "sdiareward"


def measure_paper_size(folder: Path, seed: int) -> dict[str, Any]:
    """Write random vectors of the paper's number and width to a cache; time epochs on it.

    Args:
        folder (`Path`): For the cache.
        seed (`int`): Draws the vectors.
    """
    identity = {"made": "at random", "seed": seed}
    start = time.perf_counter()
    FeatureShards(folder / "paper", identity, torch.float32).write(random_vectors(seed))
    writing_s = time.perf_counter() - start
    cache = cast(FeatureCache, FeatureShards(folder / "paper", identity, torch.float32))
    num_bytes = sum(path.stat().st_size for path in (folder / "paper").iterdir())
    config = SDiaRewardConfig(text_config={"hidden_size": _PAPER_HIDDEN_SIZE})
    numbers = range(_NUM_PAPER_PAIRS)
    keys = {f"{side}_key": [paper_key(number, side) for number in numbers] for side in SIDES}
    described = {"row": list(numbers), "pair_id": list(map(str, numbers)), "length": [len(SIDES)] * len(numbers)}
    rows = datasets.Dataset.from_dict({**described, **keys})
    processor = SDiaRewardProcessor.from_pretrained(NANO)
    epochs = time_epochs(
        SDiaRewardHead(config),
        processor,
        FeatureCollator(cache),
        rows,
        folder=folder / "run",
        epochs=5,
        batch_size=_BATCH_SIZE["paper"],
        seed=seed,
        num_threads=1,
    )
    torch.set_num_threads(_NUM_THREADS)
    return {
        "pairs": _NUM_PAPER_PAIRS,
        "hidden_size": _PAPER_HIDDEN_SIZE,
        "batch_size": _BATCH_SIZE["paper"],
        "cache_bytes": num_bytes,
        "cache_bytes_over_vectors": round(num_bytes / (2 * _NUM_PAPER_PAIRS * _PAPER_HIDDEN_SIZE * 4), 5),
        "writing_s": round(writing_s, 2),
        "epoch_s": _rounded(epochs),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def random_vectors(seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a chosen and a rejected vector for each pair; the chosen ones are slightly shifted."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(_NUM_PAPER_PAIRS):
        chosen, rejected = torch.randn(2, 1, _PAPER_HIDDEN_SIZE, generator=generator)
        yield paper_key(number, "chosen"), chosen + 0.02
        yield paper_key(number, "rejected"), rejected


def paper_key(number: int, side: str) -> str:
    """Return a key with the length of a real one."""
    return f"{number:031x}{side[0]}"


if __name__ == "__main__":
    sys.exit(main())
