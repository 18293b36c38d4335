"""The runs of an ablation: heads on cached features, and short trainings through the backbone.

The key of a run is a hash of its settings: the trained part, features, weights, pairs and options. A finished run is a
line of JSON; an interrupted run starts again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from trl import RewardConfig

from benchmarks.ablation_features import Backbone
from sdiareward.common.files import JsonLines
from sdiareward.common.worker_pool import open_worker_pool
from sdiareward.esdr_accuracy.pairwise import pairwise_accuracy
from sdiareward.evaluation.pair_scoring import ModelPairScorer, score_pairs
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.scoring.scorer import Scorer
from sdiareward.train import train
from sdiareward.training.arguments import TrainArguments
from sdiareward.training.head_fitting import compute_rewards, fit_head


_FREEZE_OPTIONS = {
    "eval_strategy": "steps",
    "eval_steps": 0.25,
    "logging_steps": 0.25,
    "save_strategy": "steps",
    "save_steps": 0.25,
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
    # A recipe's number of steps may be more than a subset of its pairs has.
    "warmup_steps": 0.15,
    "disable_tqdm": True,
    "report_to": "none",
}
# Paths, which are not part of a run's key.
_PLACES = ("model_name_or_path", "dataset", "dataset_config")
FREEZE_MODES: dict[str, dict[str, Any]] = {
    "head": {"train": "head"},
    "lora": {"train": "lora"},
    "full, audio tower frozen": {"train": "full", "freeze_audio_tower": True},
    "full, text model frozen": {"train": "full", "freeze_audio_tower": False, "freeze_text_model": True},
    "full": {"train": "full", "freeze_audio_tower": False},
}


@dataclass(frozen=True)
class HeadRun:
    """A head on features of a backbone.

    Args:
        backbone ([`Backbone`]): Whose features.
        features (`str`): One of its `feature_sets`.
        coefficient (`float`): Of the centering term, lambda in equation 4; 0 for none.
        learning_rate (`float`): Peak learning rate.
        seed (`int`): Which order of the pairs; a new head is at zero whatever the seed.
        training (`dict`): Options of `trl.RewardConfig` from the recipe.
        pairs (`dict[str, str]`): Fingerprint of the pairs by split.
    """

    backbone: Backbone
    features: str
    coefficient: float
    learning_rate: float
    seed: int
    training: dict[str, Any]
    pairs: dict[str, str]

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that the result depends on."""
        return {
            "kind": "head",
            "backbone": self.backbone.title,
            "revision": self.backbone.revision,
            "dtype": self.backbone.dtype,
            "features": self.features,
            "lambda": self.coefficient,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "training": self.training,
            "pairs": self.pairs,
        }

    def perform(self) -> dict[str, Any]:
        """Train, select by validation loss, and measure on the test pairs."""
        head, processor = self.backbone.new_head(self.features)
        collator = self.backbone.collator(self.features)
        rows = {split: self.backbone.rows_of(split, self.features) for split in self.backbone.rows}
        best = fit_head(head, processor, collator, rows["train"], rows["validation"], self._training())
        chosen, rejected = compute_rewards(head, collator, rows["test"])
        found = measure(self.backbone.labels, chosen, rejected)
        return {**found, "eval_loss": best.loss, "best_step": best.step, "history": best.history}

    def _training(self) -> dict[str, Any]:
        own = {"seed": self.seed, "learning_rate": self.learning_rate}
        return {**self.training, **own, "center_rewards_coefficient": self.coefficient or None}


def measure(labels: Sequence[Mapping[str, Any]], chosen: Sequence[float], rejected: Sequence[float]) -> dict[str, Any]:
    """Return the accuracies of Table 6 and the mean rewards.

    Args:
        labels (`Sequence[Mapping]`): Labels of each pair.
        chosen (`Sequence[float]`): Rewards of the chosen sides.
        rejected (`Sequence[float]`): Rewards of the rejected sides.
    """
    groups = [label["group_id"] or label["pair_id"] for label in labels]
    accuracy = pairwise_accuracy(chosen, rejected, [label["subset"] for label in labels], groups)
    mean_chosen, mean_rejected = _mean(chosen), _mean(rejected)
    return {
        "accuracy": accuracy,
        "chosen": mean_chosen,
        "rejected": mean_rejected,
        "margin": mean_chosen - mean_rejected,
    }


@dataclass(frozen=True)
class FreezeRun:
    """A short training through the backbone with some parts frozen.

    Args:
        mode (`str`): One of `FREEZE_MODES`.
        backbone (`str`): What to call the backbone.
        arguments (`dict`): Of `TrainArguments`, from the recipe.
        training (`dict`): Options of `trl.RewardConfig`, from the recipe.
        seed (`int`): Seed.
        revision (`str`): Hash of the backbone's weights.
        pairs (`dict[str, str]`): Fingerprint of the pairs by split.
        data (`Path`): The pairs, as a data set.
        folder (`Path`): Where to work.
    """

    mode: str
    backbone: str
    arguments: dict[str, Any]
    training: dict[str, Any]
    seed: int
    revision: str
    pairs: dict[str, str]
    data: Path
    folder: Path

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that the result depends on, without paths."""
        return {
            "kind": "freeze",
            "mode": self.mode,
            "backbone": self.backbone,
            "revision": self.revision,
            "learning_rate": self.training["learning_rate"],
            "lambda": self.training.get("center_rewards_coefficient") or 0.0,
            "seed": self.seed,
            "arguments": {name: value for name, value in self.arguments.items() if name not in _PLACES},
            "training": self.training,
            "pairs": self.pairs,
        }

    def perform(self) -> dict[str, Any]:
        """Train, select by validation loss, and score the test pairs with the saved model."""
        folder = self.folder / key_of(self)[:12]
        shutil.rmtree(folder, ignore_errors=True)
        own = {"output_dir": str(folder / "model"), "seed": self.seed}
        training = RewardConfig(**{**self.training, **_FREEZE_OPTIONS, **own})
        arguments = TrainArguments(**{**self.arguments, **FREEZE_MODES[self.mode], "dataset": str(self.data)})
        checkpoint = train(arguments, training)
        pairs = load_pairs(str(self.data), "test")
        scores, skipped = score_pairs(
            lambda: ModelPairScorer(Scorer.from_pretrained(checkpoint)), pairs, describe_pairs(pairs), folder
        )
        found = measure(
            list(scores.values()), *([each[side] for each in scores.values()] for side in ("chosen", "rejected"))
        )
        history = json.loads((checkpoint / "run.json").read_text(encoding="utf-8"))["history"]
        shutil.rmtree(folder)
        losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
        return {**found, "eval_loss": min(losses), "num_skipped": len(skipped)}


Run = HeadRun | FreezeRun


def key_of(run: Run) -> str:
    """Return the hash of a run's settings."""
    return hashlib.sha256(json.dumps(run.settings, sort_keys=True).encode()).hexdigest()


def run_all(runs: Sequence[Run], log: JsonLines, num_workers: int) -> list[dict[str, Any]]:
    """Perform the missing runs, and return the record of each run.

    Args:
        runs (`Sequence[Run]`): Runs; equal ones are performed once.
        log ([`JsonLines`]): Finished runs; each is appended when it ends.
        num_workers (`int`): Processes of one thread each; 0 runs everything here, with all threads.

    Returns:
        `list[dict]`: For each run its `key`, `settings`, `seconds` and results.
    """
    from tqdm.auto import tqdm

    finished = {record["key"]: record for record in log.read()}
    missing = {key_of(run): run for run in runs}
    missing = {key: run for key, run in missing.items() if key not in finished}
    results = spread(_perform, list(missing.values()), num_workers)
    for _, record in tqdm(results, "runs", len(missing), disable=not missing, unit="run"):
        log.append([record])
        finished[record["key"]] = record
    return [finished[key_of(run)] for run in runs]


def _perform(run: Run) -> dict[str, Any]:
    start = time.perf_counter()
    found = run.perform()
    return {"key": key_of(run), "settings": run.settings, "seconds": round(time.perf_counter() - start, 2), **found}


def spread(function: Callable[[Any], Any], items: Sequence[Any], num_workers: int) -> Iterator[tuple[int, Any]]:
    """Apply a function to items in processes of one thread each; yield the index of each item and its result.

    Args:
        function (`Callable`): Of a module; it and the items are sent to the processes.
        items (`Sequence`): What to apply it to.
        num_workers (`int`): Processes; with 0 everything runs in this process, in order.
    """
    if num_workers == 0 or not items:
        yield from enumerate(map(function, items))
        return
    with open_worker_pool(min(num_workers, len(items)), _begin_worker) as pool:
        indices = {pool.submit(function, item): index for index, item in enumerate(items)}
        for future in as_completed(indices):
            yield indices[future], future.result()


def _begin_worker() -> None:
    torch.set_num_threads(1)
    datasets.disable_progress_bars()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
