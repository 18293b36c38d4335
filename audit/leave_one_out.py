"""Measure score heads on synthesizers and sources that were held out of their training.

For each synthesizer, for each source and for each synthesizer with each source, a score head is trained on the pairs
of all others and measured on its pairs and on the rest, and so is the acoustic baseline. Heads are trained on cached
features of the frozen backbone, as `train.py --train head` trains one, each in seconds; the backbone runs once.

Notable choices:

- A backbone that was trained on pairs of a synthesizer has heard it, whatever the head is trained on: the test then
  only measures what the head adds (`backbone_saw`). For a valid test, give an untrained backbone: a pretrained one, or
  `"nano"`, which builds the nano model before training. A checkpoint whose head is not at zero counts as trained; if
  only its head was trained, give its backbone instead.
- Heads and learning rates are selected by validation loss, on validation pairs without the held-out ones.
- Each row also has the head that held nothing out, on the same pairs, as the reference for a drop.
- A criterion with too few pairs to train or to measure on is skipped and reported, as is a fold without any.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.checkpoint_io.builtin import find_checkpoint
from sdiareward.checkpoint_io.fingerprint import fingerprint_model
from sdiareward.common.files import JsonLines, replace_atomically
from sdiareward.common.run_identity import claim_run_dir
from sdiareward.evaluation.summary import Labels
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.schema import SIDES

from .leave_one_out_folds import SCORERS, SPLITS, Fold, describe_folds, plan_folds


if TYPE_CHECKING:
    import datasets

    from sdiareward.evaluation.baselines import SideFeatures
    from sdiareward.training.setup import TrainingSetup


@dataclass(frozen=True)
class LeftOutSettings:
    """Hyper-parameters of the heads.

    Args:
        learning_rates (`tuple[float, ...]`): Candidates; each fold selects one by validation loss.
        num_epochs (`float`): Passes over the training pairs.
        batch_size (`int`): Pairs in a step.
        center_rewards_coefficient (`float`): Lambda of the loss.
        min_pairs (`int`): The smallest number of pairs of a criterion to train on, and to measure on.
        bf16 (`bool`): Run the backbone in bfloat16.
        seed (`int`): Seed of the order of the pairs.
    """

    learning_rates: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)
    num_epochs: float = 10.0
    batch_size: int = 8
    center_rewards_coefficient: float = 0.01
    min_pairs: int = 20
    bf16: bool = False
    seed: int = 0

    def make_options(self, learning_rate: float) -> dict[str, Any]:
        """Return the fields of `trl.RewardConfig` of a head."""
        return {
            "learning_rate": learning_rate,
            "num_train_epochs": self.num_epochs,
            "per_device_train_batch_size": self.batch_size,
            "center_rewards_coefficient": self.center_rewards_coefficient or None,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.1,
            "bf16": False,
            "seed": self.seed,
        }


def measure_left_out(
    model: str,
    splits: Mapping[str, datasets.Dataset],
    folder: str | Path,
    *,
    settings: LeftOutSettings | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train and measure a head for each fold of `plan_folds`; folds in the folder are not repeated.

    Args:
        model (`str`): Checkpoint whose backbone is used, a pretrained backbone, or `"nano"` for an untrained nano
            model, which is written into the folder.
        splits (`Mapping[str, datasets.Dataset]`): `train`, `validation` and `test` pairs, from `loading.load_pairs`.
        folder (`str` or `Path`): Folder of `folds.jsonl`, with one line per fold, and of the cached features.
        settings ([`LeftOutSettings`], *optional*): Hyper-parameters of the heads.
        **options: Options of `pairwise_accuracy`, such as `num_bootstrap`.

    Returns:
        `dict`: `model`, `settings`, `num_pairs` by split; `folds`, each with `kind`, `name`, `criteria`,
        `backbone_saw`, `num_train`, `num_validation`, `learning_rate`, `eval_loss` and `num_skipped`; `not_measured`,
        refused by `plan_folds`; and `rows` and `summary`, from `describe_folds`.

    Raises:
        ValueError: A split is missing, nothing can be measured, or the folder is of another model, other pairs or
            other settings.
    """
    settings, folder = settings or LeftOutSettings(), Path(folder)
    if missing := [split for split in SPLITS if split not in splits]:
        raise ValueError(f"the data have no split {', '.join(missing)}; heads are trained, selected and measured.")
    labels = {split: describe_pairs(splits[split]) for split in SPLITS}
    folds, refused = plan_folds(labels, settings.min_pairs)
    if not folds:
        raise ValueError(f"nothing can be held out: {refused[0]['criterion']}: {refused[0]['reason']}.")
    name = _locate(model, folder)
    pairs = {split: fingerprint_pairs(labels[split], splits[split]) for split in SPLITS}
    claim_run_dir(folder, {"model": fingerprint_model(name), "pairs": pairs, "settings": _convert_settings(settings)})
    log = JsonLines(folder / "folds.jsonl")
    known = {(record["kind"], record["name"]): record for record in log.read()}
    if missing_folds := [fold for fold in folds if (fold.kind, fold.name) not in known]:
        for record in _perform(missing_folds, name, splits, labels, folder, settings):
            log.append([record])
            known[record["kind"], record["name"]] = record
    records = [known[fold.kind, fold.name] for fold in folds]
    return {
        "model": model,
        "settings": _convert_settings(settings),
        "num_pairs": {split: len(labels[split]) for split in SPLITS},
        "folds": [{key: value for key, value in record.items() if key not in SCORERS} for record in records],
        "not_measured": refused,
        **describe_folds(records, labels["test"], **options),
    }


def _convert_settings(settings: LeftOutSettings) -> dict[str, Any]:
    """Return the settings as JSON reads them back."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return plain


def _locate(model: str, folder: Path) -> str:
    """Return the folder or Hub id of a model; `"nano"` is an untrained one here, built if it does not exist."""
    if model != "nano":
        return find_checkpoint(model)
    built = folder / "nano"
    if not built.exists():
        from sdiareward.checkpoint_io.nano import build_nano

        folder.mkdir(parents=True, exist_ok=True)
        with replace_atomically(built) as temporary:
            build_nano(temporary)
    return str(built)


def _perform(
    folds: Sequence[Fold],
    model: str,
    splits: Mapping[str, datasets.Dataset],
    labels: Mapping[str, Labels],
    folder: Path,
    settings: LeftOutSettings,
) -> Iterator[dict[str, Any]]:
    """Yield the record of each fold."""
    from tqdm.auto import tqdm

    with _restore_threads():
        setup = _compute_features(model, splits, str(folder / "features"), settings)
        acoustic = _compute_acoustic_features(splits, folder)
        runner = _FoldRunner(setup, acoustic, labels, settings)
        for fold in tqdm(folds, "held out", unit="fold"):
            yield runner.run(fold)


@contextmanager
def _restore_threads() -> Iterator[None]:
    """Restore the number of threads of torch, which training heads sets to one."""
    import torch

    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _compute_features(
    model: str, splits: Mapping[str, datasets.Dataset], cache: str, settings: LeftOutSettings
) -> TrainingSetup:
    """Compute the features that are missing in the cache, as for a training of the head."""
    import torch
    from trl import RewardConfig

    from sdiareward.training.setup import set_up_head

    with tempfile.TemporaryDirectory() as unused:
        # Where there is no accelerator, bfloat16 has to be asked for on the CPU.
        on_cpu = not torch.accelerator.is_available()
        training = RewardConfig(output_dir=unused, bf16=settings.bf16, use_cpu=on_cpu, report_to="none")
        return set_up_head(model, {split: splits[split] for split in SPLITS}, training, cache_folder=cache)


def _compute_acoustic_features(splits: Mapping[str, datasets.Dataset], folder: Path) -> dict[str, SideFeatures]:
    """Compute the features of the acoustic baseline on training and test pairs; cache them in the folder."""
    from sdiareward.evaluation.baselines import SideFeatures, read_features

    found = {}
    for split in ("train", "test"):
        path = folder / f"acoustic_{split}.npz"
        if not path.exists():
            read = read_features("acoustic", splits[split], progress=True)
            reasons = json.dumps(list(read.failures.items()))
            # To an open file: NumPy adds ".npz" to a name that lacks it.
            with replace_atomically(path) as temporary, temporary.open("wb") as file:
                np.savez(file, chosen=read.chosen, rejected=read.rejected, failures=reasons)
        with np.load(path, allow_pickle=False) as file:
            failures = dict(json.loads(str(file["failures"])))
            found[split] = SideFeatures(file["chosen"], file["rejected"], failures)
    return found


class _FoldRunner:
    """Train and measure heads and baselines; folds with the same pairs share the result."""

    def __init__(
        self,
        setup: TrainingSetup,
        acoustic: Mapping[str, SideFeatures],
        labels: Mapping[str, Labels],
        settings: LeftOutSettings,
    ):
        self.setup = setup
        self.acoustic = acoustic
        self.labels = labels
        self.settings = settings
        self.rows = {split: list(setup.splits[split]) for split in SPLITS}
        self.saw_pairs = bool(setup.model.score.weight.any())
        self._done: dict[Any, dict[str, Any]] = {}

    def run(self, fold: Fold) -> dict[str, Any]:
        """Return the record of a fold."""
        kept = {
            split: [row for row in self.rows[split] if not fold.leaves_out(self._label(split, row))]
            for split in SPLITS[:2]
        }
        tested = [
            row
            for row in self.rows["test"]
            if row["row"] not in self.acoustic["test"].failures
            and self._label("test", row)["criterion"] in fold.criteria
        ]
        heard = fold.kind is None or any(map(fold.leaves_out, self.labels["train"]))
        return {
            **asdict(fold),
            "criteria": list(fold.criteria),
            "backbone_saw": self.saw_pairs and heard,
            "num_train": len(kept["train"]),
            "num_validation": len(kept["validation"]),
            "num_skipped": len(self.setup.skipped),
            **self._measure(kept["train"], kept["validation"], tested),
        }

    def _label(self, split: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.labels[split][row["row"]]

    def _measure(self, *rows: list[dict[str, Any]]) -> dict[str, Any]:
        # To hold out a synthesizer that training never had changes nothing.
        key = tuple(tuple(row["row"] for row in of_split) for of_split in rows)
        if key not in self._done:
            train, validation, tested = rows
            found, sides = self._fit_heads(train, validation, tested)
            baseline = self._fit_baseline(train, tested)
            self._done[key] = {
                **found,
                **{
                    scorer: {
                        row["pair_id"]: dict(zip(SIDES, values, strict=True))
                        for row, values in zip(tested, zip(*of_scorer, strict=True), strict=True)
                    }
                    for scorer, of_scorer in (("head", sides), ("acoustic", baseline))
                },
            }
        return self._done[key]

    def _fit_heads(self, train: Any, validation: Any, tested: Any) -> tuple[dict[str, Any], Any]:
        """Train a head with each learning rate; measure the one of the lowest validation loss."""
        from sdiareward.training.head import SDiaRewardHead
        from sdiareward.training.head_fitting import compute_rewards, fit_head

        fitted = []
        for learning_rate in self.settings.learning_rates:
            head = SDiaRewardHead(self.setup.model.config)
            options = self.settings.make_options(learning_rate)
            best = fit_head(head, self.setup.processor, self.setup.collator, train, validation, options)
            fitted.append((best.loss, learning_rate, head))
        loss, learning_rate, head = min(fitted, key=lambda each: each[:2])
        return {"learning_rate": learning_rate, "eval_loss": loss}, compute_rewards(head, self.setup.collator, tested)

    def _fit_baseline(self, train: Any, tested: Any) -> tuple[list[float], list[float]]:
        from sdiareward.evaluation.baselines import score_features

        chosen = {split: [row["row"] for row in rows] for split, rows in (("train", train), ("test", tested))}
        criteria = {split: [self.labels[split][row]["criterion"] for row in rows] for split, rows in chosen.items()}
        features = {split: self.acoustic[split].select(rows) for split, rows in chosen.items()}
        scores = score_features(features["train"], criteria["train"], features["test"], criteria["test"])
        return scores.chosen.tolist(), scores.rejected.tolist()
