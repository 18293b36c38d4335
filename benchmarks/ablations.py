"""Every ablation of the paper in one command: Table 4, Table 6, and sweeps over lambda, layers and frozen parts.

    python -m benchmarks.ablations --config configs/nano.yaml       # two backbones, within 15 minutes on 2 cores
    python -m benchmarks.ablations --config configs/7b.yaml --set per_device_train_batch_size=32
    python -m benchmarks.ablations --config configs/nano.yaml --only table6,lambda --limit 100    # a quick look

Parts: `table6` trains a head for each pooling (last token, attention, mean), with and without the centering term, for
each seed; `lambda` heads on mean-pooled vectors with more values of the coefficient; `layers` heads on the mean of
every text layer (at most nine); `freeze` runs `train.py` on a few pairs with different parts frozen. Every head is
selected by validation loss and measured on the test split. Each table has the two cheap baselines of
`evaluation/baselines.py`, fitted on the same training pairs.

Features and one line per finished run are kept in `output_dir`, and the same command resumes after a kill. The result
is `benchmarks/results/ablations_RECIPE.json`, with the tables (.md) and figures (.png) made of it.

Notable choices:

- For `nano` there are two backbones: a random text model over Whisper's encoder, and that of `checkpoints/nano`, which
  was trained on the labels of the training split with mean pooling. Its limit, learning rates and epochs are `_NANO`.
- With several learning rates each feature set takes the one with the lowest validation loss, at the recipe's
  coefficient and the first seed.
- A new head is zero, so a seed changes only the order of the pairs.
- `freeze` uses the recipe, or for `head` and `lora` the files `RECIPE_head.yaml` and `RECIPE_lora.yaml` beside it,
  with a warm-up for few steps, on the first backbone.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from trl import RewardConfig

from benchmarks.ablation_data import Study, load_study
from benchmarks.ablation_features import POOLINGS, Backbone, compute_features
from benchmarks.ablation_figures import draw_figures
from benchmarks.ablation_recipe import Recipe, read_recipe
from benchmarks.ablation_runs import FREEZE_MODES, FreezeRun, HeadRun, measure, run_all, spread
from benchmarks.ablation_summary import choose_learning_rates, drift, summarise
from benchmarks.guides.rendering import render_blocks
from benchmarks.racing import describe_cpu, write_result
from sdiareward.checkpoint_io.fingerprint import fingerprint_model
from sdiareward.checkpoint_io.nano import build_nano
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import JsonLines, write_file
from sdiareward.evaluation.pair_scoring import score_with_baselines
from sdiareward.pairs.schema import SIDES
from sdiareward.training.arguments import TrainArguments


ROOT = Path(__file__).resolve().parent.parent
PARTS = ("table6", "lambda", "layers", "freeze")
LAMBDAS = (0.0, 0.001, 0.01, 0.1, 1.0)
_NANO = {
    "model": ["nano", "checkpoints/nano"],
    "limit": 240,
    "learning_rate": [1e-3, 1e-2, 1e-1, 1.0],
    "epochs": 10.0,
}
Records = list[dict[str, Any]]
_ROW = ("backbone", "features", "lambda")


def render_report(result: Mapping[str, Any]) -> str:
    """Render all tables of a result as Markdown."""
    titles = {
        "pairs": "Pairs",
        "table4": "Table 4",
        "table6": "Table 6",
        "lambda": "Centering coefficient",
        "layers": "Layers",
        "freeze": "Frozen parts",
        "learning_rates": "Learning rates",
        "cost": "Time",
    }
    blocks = render_blocks("results_ablations", {"ablations_nano.json": result})
    parts = [f"# Ablations of {result['arguments']['recipe']}"]
    parts += [f"## {title}\n\n{blocks[name]}" for name, title in titles.items()]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> Path:
    """Run the command line and return the path of the result."""
    args = _parse_arguments(argv)
    result = Ablation(args, read_recipe(args.config, args.set)).run()
    path = Path(args.result)
    write_result(path, **result)
    report = render_report(result)
    write_file(path.with_suffix(".md"), report)
    draw_figures(result, path)
    print(report)
    return path


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    config: Path = field(metadata={"help": "recipe of train.py"})
    set: list[str] = field(
        default_factory=list, metadata={"metavar": "KEY=VALUE", "help": "values instead of the recipe's"}
    )
    model: list[str] | None = field(
        default=None, metadata={"help": "backbones or checkpoints; by default the recipe's"}
    )
    only: str = field(default=",".join(PARTS), metadata={"help": f"some of {', '.join(PARTS)}, with commas"})
    seeds: int = field(default=5, metadata={"help": "number of seeds"})
    limit: int | None = field(default=None, metadata={"help": "pairs of all splits together; 0 for all"})
    learning_rate: list[float] | None = field(
        default=None, metadata={"help": "learning rates of heads; by default the recipe's"}
    )
    epochs: float | None = field(default=None, metadata={"help": "epochs of heads; by default the recipe's"})
    freeze_seeds: int = field(default=1, metadata={"help": "number of seeds of the runs that freeze parts"})
    freeze_pairs: int = field(default=40, metadata={"help": "pairs of the runs that freeze parts; as --limit"})
    workers: int | None = field(
        default=None, metadata={"help": "processes; 0 for none, the default where there is an accelerator"}
    )
    output_dir: Path | None = field(
        default=None, metadata={"help": "folder to write; by default runs/ablations/RECIPE"}
    )
    result: Path | None = field(
        default=None, metadata={"help": "file of the result; by default benchmarks/results/ablations_RECIPE.json"}
    )


def _parse_arguments(argv: Sequence[str] | None) -> Arguments:
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.ablations", description=__doc__)
    args.only = tuple(args.only.split(","))
    if unknown := sorted(set(args.only) - set(PARTS)):
        raise SystemExit(f"--only: {', '.join(unknown)} is no part; choose from {', '.join(PARTS)}.")
    return _complete(args)


def _complete(args: Arguments) -> Arguments:
    """Fill in what depends on the recipe and on the machine."""
    recipe = read_recipe(args.config, args.set)
    name = recipe.arguments["model_name_or_path"]
    if name == "nano":
        for option, value in _NANO.items():
            if getattr(args, option) is None:
                setattr(args, option, value)
    args.model = args.model or [name]
    args.learning_rate = args.learning_rate or [recipe.training["learning_rate"]]
    args.epochs = args.epochs or recipe.training.get("num_train_epochs", 3.0)
    args.output_dir = args.output_dir or Path("runs") / "ablations" / args.config.stem
    args.result = args.result or ROOT / "benchmarks" / "results" / f"ablations_{args.config.stem}.json"
    if args.workers is None:
        has_accelerator = torch.accelerator.is_available() and not recipe.training.get("use_cpu")
        args.workers = 0 if has_accelerator else os.cpu_count()
    return args


@dataclass(frozen=True)
class FeatureJob:
    """The features of one backbone.

    Args:
        title (`str`): What to call it.
        model (`str`): Where it is.
        recipe ([`Recipe`]): Decides dtype and device.
        study ([`Study`]): The pairs.
        folder (`Path`): The command's folder.
    """

    title: str
    model: str
    recipe: Recipe
    study: Study
    folder: Path

    def perform(self) -> tuple[Backbone, list[dict[str, Any]]]:
        """Compute the missing features; see `compute_features`."""
        arguments = TrainArguments(**{**self.recipe.arguments, "model_name_or_path": self.model})
        training = RewardConfig(**{**self.recipe.training, "output_dir": str(self.folder)})
        return compute_features(self.title, arguments, training, self.study, self.folder / "backbones")


@dataclass
class Ablation:
    """The state of a running command.

    Args:
        args (`Arguments`): The command line.
        recipe ([`Recipe`]): What is ablated.
    """

    args: Arguments
    recipe: Recipe

    def run(self) -> dict[str, Any]:
        """Run what is missing, and return the result."""
        study = load_study(self.recipe.arguments["dataset"], self.recipe.arguments.get("dataset_config"))
        whole, study = len(study), study.take(self.args.limit or None)
        self.args.output_dir.mkdir(parents=True, exist_ok=True)
        log = JsonLines(self.args.output_dir / "runs.jsonl")
        result: dict[str, Any] = {
            "arguments": self._arguments(),
            "pairs": study.count_pairs(),
            "num_pairs": len(study),
        }
        result |= {"num_pairs_of_data_set": whole, "recipe": self.recipe.training}
        with self._timed("baselines"):
            result["baselines"] = self._baselines(study, self.args.output_dir)
        with self._timed("features"):
            backbones, result["skipped"] = self._backbones(study)
        with self._timed("heads"):
            tried, records = self._heads(backbones, study, log)
        with self._timed("freeze"):
            freeze, found = self._freeze(study, log)
        result |= found | _tables(records, tried, freeze)
        return result | {"cost": self._cost(), "num_runs": len(log.read()), "cpu": describe_cpu()}

    def _arguments(self) -> dict[str, Any]:
        places = ("config", "output_dir", "result")
        return {"recipe": self.args.config.stem} | {
            name: value for name, value in vars(self.args).items() if name not in places
        }

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Record the time of a stage, also of an interrupted one; a kill leaves no line."""
        start, cpu_s = time.perf_counter(), _cpu_s()
        try:
            yield
        finally:
            seconds = {"wall_s": round(time.perf_counter() - start, 1), "cpu_s": round(_cpu_s() - cpu_s, 1)}
            self._sessions.append([{"stage": name, **seconds}])

    @property
    def _sessions(self) -> JsonLines:
        return JsonLines(self.args.output_dir / "sessions.jsonl")

    def _cost(self) -> dict[str, dict[str, float]]:
        """Return the total seconds of each stage over all calls of the command."""
        cost: dict[str, dict[str, float]] = {}
        for session in self._sessions.read():
            total = cost.setdefault(session["stage"], {"wall_s": 0.0, "cpu_s": 0.0})
            for name in total:
                total[name] = round(total[name] + session[name], 1)
        return cost

    def _baselines(self, study: Study, folder: Path) -> dict[str, Any]:
        """Measure the two baselines on the same test pairs."""
        labels = study.labels["test"]
        train, tested = ((study.pairs[split], study.labels[split]) for split in ("train", "test"))
        return {
            kind: measure(labels, *([scores[label["pair_id"]][side] for label in labels] for side in SIDES))
            for kind, (scores, _) in score_with_baselines(*train, *tested, folder).items()
        }

    def _backbones(self, study: Study) -> tuple[list[Backbone], dict[str, Any]]:
        """Compute the features of every backbone; also return the skipped pairs by backbone."""
        names = self.args.model if set(self.args.only) - {"freeze"} else []
        jobs = [
            FeatureJob(title(name), self._locate(name), self.recipe, study, self.args.output_dir) for name in names
        ]
        done = dict(spread(FeatureJob.perform, jobs, self.args.workers))
        found = [done[index] for index in range(len(jobs))]
        return [backbone for backbone, _ in found], {backbone.title: skipped for backbone, skipped in found}

    def _locate(self, name: str) -> str:
        """Return the path of a backbone; build a random nano one if needed."""
        if name != "nano":
            return name
        folder = self.args.output_dir / "nano"
        if not folder.exists():
            build_nano(folder.with_name(".nano.tmp")).rename(folder)
        return str(folder)

    def _heads(
        self, backbones: Sequence[Backbone], study: Study, log: JsonLines
    ) -> tuple[Records, dict[str, Records]]:
        """Train all heads; return the records of the learning rate search, and those of each part."""
        training = {**self.recipe.training, "num_train_epochs": self.args.epochs}
        pairs = study.fingerprints()

        def run(backbone: Backbone, features: str, coefficient: float, learning_rate: float, seed: int) -> HeadRun:
            return HeadRun(backbone, features, coefficient, learning_rate, seed, training, pairs)

        plans = {part: list(self._plan(part, backbones)) for part in self.args.only if part != "freeze"}
        places = {(backbone.title, features): backbone for plan in plans.values() for backbone, features, _ in plan}
        tried = [
            run(backbone, features, self.recipe.coefficient, learning_rate, 0)
            for (_, features), backbone in places.items()
            for learning_rate in self.args.learning_rate
        ]
        records = run_all(tried, log, self.args.workers)
        chosen = choose_learning_rates(records)
        runs = {
            part: [
                run(backbone, features, coefficient, chosen[backbone.title, features], seed)
                for backbone, features, coefficient in plan
                for seed in range(self.args.seeds)
            ]
            for part, plan in plans.items()
        }
        done = iter(run_all([run for part in runs.values() for run in part], log, self.args.workers))
        return records, {part: [next(done) for _ in members] for part, members in runs.items()}

    def _plan(self, part: str, backbones: Sequence[Backbone]) -> Iterator[tuple[Backbone, str, float]]:
        """Yield backbone, feature set and lambda of each row of a part's table."""
        own = self.recipe.coefficient
        for backbone in backbones:
            if part == "table6":
                yield from ((backbone, pooling, value) for pooling in POOLINGS for value in sorted({0.0, own}))
            elif part == "lambda":
                yield from ((backbone, "mean", value) for value in sorted({*LAMBDAS, own}))
            else:
                names = [name for name in backbone.feature_sets if name not in POOLINGS]
                yield from ((backbone, name, own) for name in (*names, "mean"))

    def _freeze(self, study: Study, log: JsonLines) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Train with different parts frozen; return the records, and the pairs and baselines of these runs."""
        if "freeze" not in self.args.only:
            return [], {}
        few = study.take(self.args.freeze_pairs)
        folder = self.args.output_dir / "freeze"
        data, path = few.write(folder / "data"), self._locate(self.args.model[0])
        revision, pairs = fingerprint_model(path), few.fingerprints()
        runs = []
        for mode, changes in FREEZE_MODES.items():
            recipe = self._recipe_of(changes["train"])
            arguments = {**recipe.arguments, "model_name_or_path": path, "dataset_config": None}
            what = (mode, title(self.args.model[0]), arguments, recipe.training)
            runs += [FreezeRun(*what, seed, revision, pairs, data, folder) for seed in range(self.args.freeze_seeds)]
        found = {"freeze_pairs": few.count_pairs(), "freeze_baselines": self._baselines(few, folder)}
        return run_all(runs, log, self.args.workers), found

    def _recipe_of(self, mode: str) -> Recipe:
        """Return the recipe of a training mode: its own file beside the recipe, or the recipe."""
        own = self.args.config.with_name(f"{self.args.config.stem}_{mode}.yaml")
        return read_recipe(own, self.args.set) if own.exists() else self.recipe


def _tables(records: Mapping[str, Records], tried: Records, freeze: Records) -> dict[str, Any]:
    """Return the rows of all tables, and the curves of the figures."""
    rows = {part: summarise(members, _ROW) for part, members in records.items()}
    if freeze:
        rows["freeze"] = summarise(freeze, ("backbone", "mode", "lambda"))
    if tried:
        rows["learning_rates"] = summarise(tried, (*_ROW, "learning_rate"))
    pooled_by_mean = [each for each in records.get("table6", []) if each["settings"]["features"] == "mean"]
    return {"rows": rows, "drift": drift(pooled_by_mean)}


def _cpu_s() -> float:
    """Return the processor time of this process and its finished children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def title(name: str) -> str:
    """Return the name of a backbone in tables."""
    return "random backbone" if name == "nano" else f"backbone of {name}"


if __name__ == "__main__":
    main()
