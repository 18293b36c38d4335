"""Tables 4 and 6 of SDiaReward: pooling and centering of a head on a frozen backbone, and training with parts frozen.

    python -m benchmarks.ablations --recipe configs/nano.yaml --models nano checkpoints/nano --limit 240

One pass of each backbone over the dialogues gives the hidden states from which every head is trained. A head is
trained with the recipe's optimizer, batch and loss, selected by its loss on `validation`, and measured on `test`. Each
pooling takes the learning rate of the lowest validation loss. What the passes computed is kept in `--output_dir`.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import datasets
from trl import RewardConfig

from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.checkpoint_io.nano import build_nano
from sdiareward.common.commands import parse_options
from sdiareward.common.files import write_file
from sdiareward.common.machine import write_provenance
from sdiareward.common.settings import read_mapping
from sdiareward.common.tables import render_markdown_table
from sdiareward.esdr_accuracy.pairwise import COLUMNS, pairwise_accuracy
from sdiareward.evaluation.baselines import score_with_baselines
from sdiareward.evaluation.summary import TITLES, list_groups
from sdiareward.pairs.labels import describe_pairs, sample_rows
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.rows import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer
from sdiareward.train import train
from sdiareward.training.arguments import SDiaRewardModelConfig, SDiaRewardScriptArguments
from sdiareward.training.batches import FeatureCollator
from sdiareward.training.precompute import cache_pairs
from sdiareward.training.setup import SDiaRewardHead, choose_backbone_dtype, load_model
from sdiareward.training.trainer import SDiaRewardTrainer


RESULTS = Path(__file__).parent / "results"
SPLITS = ("train", "validation", "test")
POOLINGS = ("last_token", "attention", "mean")
LAMBDAS = (0.0, 0.001, 0.01, 0.1, 1.0)
FROZEN: dict[str, dict[str, Any]] = {
    "head": {"freeze_backbone": True},
    "lora": {"use_peft": True},
    "full, audio tower frozen": {"freeze_audio_tower": True},
    "full, text model frozen": {"freeze_audio_tower": False, "freeze_text_model": True},
    "full": {"freeze_audio_tower": False},
}
_SELECTION = {
    "eval_strategy": "steps",
    "eval_steps": 0.1,
    "save_strategy": "steps",
    "save_steps": 0.1,
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
    "logging_strategy": "no",
    "disable_tqdm": True,
    "report_to": "none",
}
_NUMBERS = ("chosen", "rejected", "margin", "eval_loss")
Splits = dict[str, datasets.Dataset]


@dataclass(kw_only=True)
class Arguments:
    recipe: Path = field(metadata={"help": "recipe of train.py"})
    models: list[str] = field(metadata={"help": "backbones or checkpoints; nano is the untrained one"})
    limit: int = field(default=0, metadata={"help": "pairs of each head, of all splits together; 0 for all"})
    freeze_limit: int = field(default=20, metadata={"help": "the same for training with parts frozen"})
    seeds: int = field(default=5, metadata={"help": "number of seeds of a head"})
    learning_rates: list[float] = field(
        default_factory=lambda: [1e-3, 1e-2, 1e-1, 1.0], metadata={"help": "learning rates of heads"}
    )
    epochs: float = field(default=10.0, metadata={"help": "epochs of heads"})
    output_dir: Path = field(default=Path("runs/ablations"), metadata={"help": "folder of features"})
    output: Path = field(default=RESULTS / "ablations.json", metadata={"help": "file of the result"})


def read_recipe(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the arguments of the script, those of `trl.RewardConfig`, and those of the model."""
    values = read_mapping(path)
    script, model = (
        {item.name for item in fields(kind)} for kind in (SDiaRewardScriptArguments, SDiaRewardModelConfig)
    )
    training = values.keys() - script - model - {"output_dir", "seed"}
    return tuple({name: values[name] for name in values if name in names} for names in (script, training, model))


def load_splits(dataset: str, name: str | None, limit: int) -> Splits:
    """Load the splits, each with its share of `limit` pairs, from as many recordings as possible."""
    splits = {split: load_pairs(dataset, split, name=name) for split in SPLITS}
    share = limit / sum(map(len, splits.values())) if limit else 1.0
    counts = {split: max(1, round(share * len(pairs))) for split, pairs in splits.items()}
    return {
        split: pairs.select(sorted(sample_rows(describe_pairs(pairs), counts[split])))
        for split, pairs in splits.items()
    }


def measure(pairs: datasets.Dataset, chosen: Sequence[float], rejected: Sequence[float]) -> dict[str, Any]:
    labels = describe_pairs(pairs)
    accuracy = pairwise_accuracy(chosen, rejected, [label["subset"] for label in labels], list_groups(labels))
    means = statistics.fmean(chosen), statistics.fmean(rejected)
    return {"accuracy": accuracy, "chosen": means[0], "rejected": means[1], "margin": means[0] - means[1]}


def measure_baselines(splits: Splits, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    labels = {split: describe_pairs(splits[split]) for split in ("train", "test")}
    found = score_with_baselines(splits["train"], labels["train"], splits["test"], labels["test"], folder)
    return {
        kind: measure(splits["test"], *([scores[each["pair_id"]][side] for each in labels["test"]] for side in SIDES))
        for kind, (scores, _) in found.items()
    }


@dataclass(frozen=True)
class Backbone:
    """A backbone's features of all dialogues: `features` by pooling and key, and rows that name the keys."""

    title: str
    config: Any
    processor: SDiaRewardProcessor
    features: dict[str, Any]
    rows: Splits
    test: datasets.Dataset


def compute_features(model: str, training: Mapping[str, Any], splits: Splits, folder: Path) -> Backbone:
    """Compute what is missing of the hidden states of a backbone, and pool them where no pooling is learnt."""
    options = RewardConfig(**{**training, "output_dir": str(folder)})
    dtype = choose_backbone_dtype(options)
    head, processor = load_model(model, dtype, head_only=True)
    name = str(dtype).removeprefix("torch.")
    revision = fingerprint_model(model)
    cache = FeatureCache(folder, head.config, processor, model_revision=revision, dtype=name, per_token=True)
    rows, _ = cache_pairs(splits, cache, lambda: Scorer(*load_model(model, dtype), device=options.device))
    keys = [key for split in rows.values() for side in SIDES for key in split[f"{side}_key"]]
    features = {
        "last_token": {key: cache[key][-1:].float() for key in keys},
        "attention": cache,
        "mean": {key: cache[key].float().mean(dim=0, keepdim=True) for key in keys},
    }
    test = splits["test"].select(rows["test"]["row"])
    return Backbone(model, head.config, processor, features, rows, test)


def train_head(
    backbone: Backbone, pooling: str, coefficient: float, learning_rate: float, seed: int, training: Mapping[str, Any]
) -> dict[str, Any]:
    """Train a head that begins at zero, select it by validation loss, and measure it on the test pairs."""
    config = copy.deepcopy(backbone.config)
    # A pooled vector is a sequence of one, of which the mean is itself.
    config.pooling_mode = "attention" if pooling == "attention" else "mean"
    own = {"center_rewards_coefficient": coefficient or None, "learning_rate": learning_rate, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        trainer = SDiaRewardTrainer(
            SDiaRewardHead(config),
            RewardConfig(**{**training, **_SELECTION, **own, "gradient_checkpointing": False, "output_dir": folder}),
            processing_class=backbone.processor,
            data_collator=FeatureCollator(backbone.features[pooling]),
            train_dataset=backbone.rows["train"],
            eval_dataset=backbone.rows["validation"],
        )
        trainer.train()
        rewards = trainer.predict(backbone.rows["test"]).predictions
    found = measure(backbone.test, rewards[:, 0].tolist(), rewards[:, 1].tolist())
    return {**found, "eval_loss": trainer.state.best_metric, "learning_rate": learning_rate}


def train_heads(
    backbone: Backbone, training: Mapping[str, Any], learning_rates: Sequence[float], seeds: int
) -> list[dict[str, Any]]:
    """Return a row for each pooling with and without centering, and for each lambda of mean pooling."""
    own = training.get("center_rewards_coefficient") or 0.0
    rows = []
    for pooling in POOLINGS:
        tried = [train_head(backbone, pooling, own, rate, 0, training) for rate in learning_rates]
        rate = min(tried, key=lambda found: found["eval_loss"])["learning_rate"]
        for coefficient in sorted({0.0, own, *(LAMBDAS if pooling == "mean" else ())}):
            runs = [train_head(backbone, pooling, coefficient, rate, seed, training) for seed in range(seeds)]
            rows.append({"backbone": backbone.title, "pooling": pooling, "lambda": coefficient, **summarise(runs)})
    return rows


def train_frozen(mode: str, recipe: Path, model: str, splits: Splits, folder: Path) -> dict[str, Any]:
    """Run `train.py` with some parts frozen, by the recipe of that mode beside this file if there is one."""
    own = Path(__file__).with_name(f"{recipe.stem}_{mode}.yaml")
    arguments, training, of_model = read_recipe(own if own.exists() else recipe)
    for split, pairs in splits.items():
        pairs.to_parquet(folder / "data" / f"{split}.parquet")
    args = SDiaRewardScriptArguments(**{**arguments, "dataset_name": str(folder / "data"), "dataset_config": None})
    model_args = SDiaRewardModelConfig(**{**of_model, **FROZEN[mode], "model_name_or_path": model})
    # The recipe may warm up for more steps than a few pairs give.
    options: dict[str, Any] = {
        **training,
        **_SELECTION,
        "warmup_steps": 0.15,
        "output_dir": str(folder / "model"),
        "seed": 0,
    }
    checkpoint = train(args, RewardConfig(**options), model_args)
    test = splits["test"]
    criteria = [label["criterion"] for label in describe_pairs(test) for _ in SIDES]
    rewards = Scorer.from_pretrained(checkpoint).score(Dialogues(test, range(len(test))), criteria)
    losses = [each["eval_loss"] for each in read_mapping(checkpoint / "run.json")["history"] if "eval_loss" in each]
    found = {**measure(test, rewards[::2], rewards[1::2]), "eval_loss": min(losses)}
    return {"trained": mode, **summarise([{**found, "learning_rate": training["learning_rate"]}])}


def mean_interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean over seeds and the half width of its 95% interval by Student's t; None for one value."""
    from scipy.stats import t

    if len(values) < 2:
        return {"mean": values[0], "half_width": None}
    half_width = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": statistics.fmean(values), "half_width": half_width}


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of runs that differ in their seed; ties are the most of any seed."""
    accuracies = [run["accuracy"] for run in runs]
    return {
        "learning_rate": runs[0]["learning_rate"],
        "num_seeds": len(runs),
        "accuracy": {
            name: None if accuracies[0][name] is None else mean_interval([each[name] for each in accuracies])
            for name in COLUMNS
        },
        "num_pairs": accuracies[0]["num_pairs"],
        "num_ties": {name: max(each["num_ties"][name] for each in accuracies) for name in COLUMNS},
        **{name: mean_interval([run[name] for run in runs]) for name in _NUMBERS},
    }


def render(result: Mapping[str, Any]) -> str:
    heads = [
        ([row["backbone"], row["pooling"].replace("_", " "), f"{row['lambda']:g}", f"{row['learning_rate']:g}"], row)
        for row in result["heads"]
    ]
    frozen = [([row["trained"], f"{row['learning_rate']:g}"], row) for row in result["frozen"]]
    counts = [", ".join(f"{counts[split]} {split}" for split in SPLITS) for counts in result["num_pairs"].values()]
    seeds = result["heads"][0]["num_seeds"]
    return "\n\n".join(
        [
            _render_rows(["backbone", "pooling", "lambda", "learning rate"], heads, result["baselines"]),
            f"Percent; mean and 95% interval over {seeds} seeds, which differ in the order of the pairs. A tie is "
            "wrong; ties are the maximum over the seeds. Mean rewards are over the test pairs, and the loss over the "
            f"validation pairs, centering included. Pairs: {counts[0]}.",
            _render_rows(["trained", "learning rate"], frozen, result["frozen_baselines"]),
            f"One seed on {result['frozen_model']}. Pairs: {counts[1]}: enough to see that each way runs, not to rank "
            "them.",
        ]
    )


def _render_rows(head: list[str], rows: Sequence[Any], baselines: Mapping[str, Any]) -> str:
    columns = [name for name in COLUMNS if rows[0][1]["accuracy"][name] is not None]
    titles = [*head, *(TITLES[name] for name in columns), "ties", "n", "chosen", "rejected", "loss"]
    lines = []
    for names, row in rows:
        shares = [_render_share(row["accuracy"][name]) for name in columns]
        numbers = [f"{row[name]['mean']:.2f}" for name in ("chosen", "rejected", "eval_loss")]
        lines.append([*names, *shares, row["num_ties"]["overall_micro"], row["num_pairs"]["overall_micro"], *numbers])
    for kind, found in baselines.items():
        each = found["accuracy"]
        shares = [f"{100 * each[name]:.2f}" for name in columns]
        counts = [each[name]["overall_micro"] for name in ("num_ties", "num_pairs")]
        lines.append([f"{kind} baseline", *[""] * (len(head) - 1), *shares, *counts, "", "", ""])
    return "\n".join(render_markdown_table(titles, lines, num_left=len(head)))


def _render_share(found: Mapping[str, float | None]) -> str:
    half_width = found["half_width"]
    return f"{100 * (found['mean'] or 0):.2f}" + ("" if half_width is None else f" ± {100 * half_width:.2f}")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_options(Arguments, argv, prog="python -m benchmarks.ablations", description=__doc__)
    arguments, training, _ = read_recipe(args.recipe)
    folder = args.output_dir
    data = arguments["dataset_name"], arguments.get("dataset_config")
    splits, few = (load_splits(*data, limit) for limit in (args.limit, args.freeze_limit))
    paths = {name: str(build_nano(folder / "nano")) if name == "nano" else name for name in args.models}
    of_heads = {**training, "num_train_epochs": args.epochs}
    heads = []
    for name, path in paths.items():
        backbone = compute_features(path, training, splits, folder / "features")
        heads += train_heads(Backbone(**{**vars(backbone), "title": name}), of_heads, args.learning_rates, args.seeds)
    frozen = []
    for number, mode in enumerate(FROZEN):
        (folder / f"frozen{number}" / "data").mkdir(parents=True, exist_ok=True)
        frozen.append(train_frozen(mode, args.recipe, paths[args.models[0]], few, folder / f"frozen{number}"))
    result = {
        "recipe": args.recipe.name,
        "num_pairs": {
            name: {split: len(pairs) for split, pairs in each.items()}
            for name, each in (("heads", splits), ("frozen", few))
        },
        "heads": heads,
        "baselines": measure_baselines(splits, folder / "baselines"),
        "frozen": frozen,
        "frozen_model": args.models[0],
        "frozen_baselines": measure_baselines(few, folder / "frozen_baselines"),
    }
    write_provenance(args.output, **result)
    write_file(args.output.with_suffix(".md"), render(result) + "\n")
    print(render(result))


if __name__ == "__main__":
    main()
