r"""Train and evaluate the rows of Table 1: direct inference, SFT, and ablations of WavReward.

    python -m benchmarks.wavreward_ablations \
        --config configs/wavreward-toy.yaml --sft_config configs/wavreward-nano-sft.yaml \
        --sft_set prompt_file=configs/wavreward_toy_prompt.json bf16=true \
        --dataset runs/toy_chatreward --warm_up_steps 150 --max_new_tokens 64
    python -m benchmarks.wavreward_ablations --config configs/wavreward-7b.yaml --sft_config ... \
        --launcher "accelerate launch --config_file configs/accelerate_zero3.yaml --num_processes 8"

Each variant is trained by `train_grpo` or `train_sft`, in this process or by `--launcher`, and evaluated by
`evaluate`. The same command resumes after a kill: finished variants are skipped, and training resumes from its last
checkpoint. The result is `benchmarks/results/wavreward_ablations.json`, with its table (.md).

Notable choices:

- A variant differs from `wavreward` only in the setting of its name, as in section 4.4 of the paper. SFT learns scores
  without thoughts, as there.
- An untrained nano model never writes a score. With `--warm_up_steps` all variants start from models trained by SFT on
  random scores, one with and one without thoughts: they know the form and nothing about the scores.
- Each row has the difference in accuracy to WavReward on the same samples, with its interval and McNemar's p value.
- The baselines are measured once.
"""

from __future__ import annotations

import gc
import json
import random
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from tqdm.auto import tqdm

from benchmarks.guides.rendering import render_blocks
from benchmarks.racing import RESULTS, write_result
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.run_identity import claim_run_dir
from sdiareward.dataset_builder.recipes.chatreward.loading import load_samples
from sdiareward.evaluation.statistics import compare
from sdiareward.judges.wavreward.predictions import read_predictions
from sdiareward.judges.wavreward.score_metrics import find_column, find_scenario
from sdiareward.judges.wavreward.score_tables import JUDGE


RESULT = RESULTS / "wavreward_ablations.json"
_MODULES = "sdiareward.judges.wavreward"
_THOUGHTFUL, _THOUGHTLESS = "<think>I listen.</think><score>{}</score>", "<score>{}</score>"


@dataclass(frozen=True)
class Variant:
    """A row of Table 1.

    Args:
        trainer (`str`, *optional*): `"train_grpo"` or `"train_sft"`; None for direct inference.
        changes (`dict[str, str]`): Changes to the recipe.
    """

    trainer: str | None
    changes: dict[str, str] = field(default_factory=dict)


# In the order of Table 1, complete WavReward last.
VARIANTS = {
    "direct": Variant(None),
    "sft_full": Variant("train_sft", {"train": "full", "reasoning": "false"}),
    "sft_lora": Variant("train_sft", {"train": "lora", "reasoning": "false"}),
    "no_reasoning": Variant("train_grpo", {"reasoning": "false"}),
    "no_multi_sample": Variant("train_grpo", {"multi_sample": "false"}),
    "no_nonlinear_reward": Variant("train_grpo", {"accuracy_reward": "exact"}),
    "wavreward": Variant("train_grpo"),
}
_COMPLETE = "wavreward"


def main(argv: Sequence[str] | None = None) -> Path:
    """Run the command line and return the path of the result."""
    args = _parse_arguments(argv)
    rows: list[dict[str, Any]] = []
    baselines: dict[str, Any] = {}
    for name in tqdm(args.only, desc="variants"):
        row, found = run_variant(name, args)
        rows.append(row)
        baselines = baselines or found
    compare_with_wavreward(rows, args.output_dir)
    result = {"settings": _settings(args), "rows": rows, "baselines": baselines}
    write_result(args.result, **result)
    table = render_blocks("results_wavreward", {"wavreward_ablations.json": result})["ablations"]
    report = f"# WavReward and what it lacks: {args.config.stem}\n\n{table}\n"
    write_file(args.result.with_suffix(".md"), report)
    print(report)
    return args.result


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    config: Path = field(metadata={"help": "recipe of train_grpo"})
    sft_config: Path = field(metadata={"help": "recipe of train_sft"})
    model: str | None = field(default=None, metadata={"help": "start model of all runs (default: the recipes')"})
    warm_up_steps: int = field(default=0, metadata={"help": "steps that teach the form first"})
    dataset: str | None = field(default=None, metadata={"help": "folder of ChatReward (default: the recipe's)"})
    out_of_domain: str | None = field(
        default=None, metadata={"help": "folder of recordings from elsewhere, with their scores"}
    )
    only: str = field(default=",".join(VARIANTS), metadata={"help": f"some of {', '.join(VARIANTS)}, with commas"})
    set: list[str] = field(
        default_factory=list, metadata={"metavar": "KEY=VALUE", "help": "values instead of the recipe's of train_grpo"}
    )
    sft_set: list[str] = field(
        default_factory=list, metadata={"metavar": "KEY=VALUE", "help": "values instead of the recipe's of train_sft"}
    )
    launcher: str | None = field(
        default=None, metadata={"help": "what starts each training in processes of its own (default: none)"}
    )
    max_new_tokens: int = field(default=512, metadata={"help": "longest answer in the evaluation, in tokens"})
    limit: int | None = field(default=None, metadata={"help": "evaluate only the first samples, this number"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output_dir: Path | None = field(
        default=None, metadata={"help": "folder to write; by default runs/wavreward_ablations/RECIPE"}
    )
    result: Path = field(default=RESULT, metadata={"help": "file of the result"})


def _parse_arguments(argv: Sequence[str] | None) -> Arguments:
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.wavreward_ablations", description=__doc__)
    args.only = args.only.split(",")
    if unknown := sorted(set(args.only) - set(VARIANTS)):
        raise SystemExit(f"--only: {', '.join(unknown)} is no variant; choose from {', '.join(VARIANTS)}.")
    if wrong := [change for change in (*args.set, *args.sft_set) if "=" not in change]:
        raise SystemExit(f"{', '.join(wrong)} is no KEY=VALUE.")
    args.output_dir = args.output_dir or Path("runs") / "wavreward_ablations" / args.config.stem
    return args


def run_variant(name: str, args: Arguments) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train and evaluate one variant, or read what it gave before.

    Args:
        name (`str`): One of `VARIANTS`.
        args (`Namespace`): The command's arguments.

    Returns:
        `tuple[dict, dict]`: Its row (`variant`, `reasoning`, `training_s`, `scores`: what `summarise_scores` gives),
        and the same scores of the baselines, by name, if they were measured with it.
    """
    recipe = read_recipe(name, args)
    folder = args.output_dir / name
    told = {"variant": name, "warm_up_steps": args.warm_up_steps, "recipe": recipe}
    claim_run_dir(folder, {**told, "evaluation": evaluation_arguments(recipe, args)})
    if args.warm_up_steps:
        recipe["model_name_or_path"] = str(warm_up(recipe, args))
    trainer = VARIANTS[name].trainer
    model = train(trainer, recipe, folder, args.launcher) if trainer else Path(recipe["model_name_or_path"])
    if not (folder / "eval" / "results.json").is_file():
        own = {"model": str(model), "output_dir": str(folder / "eval"), "baselines": str(name == args.only[0]).lower()}
        _run(None, "evaluate", {**evaluation_arguments(recipe, args), **own})
    results = json.loads((folder / "eval" / "results.json").read_text(encoding="utf-8"))
    row = {"variant": name, "reasoning": recipe["reasoning"], "scores": results["scorers"].pop(JUDGE)}
    sessions = JsonLines(folder / "sessions.jsonl").read()
    row["training_s"] = sum(session["training_s"] for session in sessions) if sessions else None
    return row, results["scorers"]


def compare_with_wavreward(rows: Sequence[dict[str, Any]], output_dir: Path) -> None:
    """Add the `difference` to each row: `compare` of WavReward with it on the same samples, or None.

    Args:
        rows (`list[dict]`): The rows of the table.
        output_dir (`Path`): The command's folder.
    """
    predictions = {row["variant"]: read_predictions(output_dir / row["variant"] / "eval") for row in rows}
    whole = {record["sample_id"]: _is_right(record) for record in predictions.get(_COMPLETE, [])}
    for row in rows:
        shared = [record for record in predictions[row["variant"]] if record["sample_id"] in whole]
        row["difference"] = None
        if shared and row["variant"] != _COMPLETE:
            first, second = [whole[record["sample_id"]] for record in shared], list(map(_is_right, shared))
            row["difference"] = compare(
                first, second, list(map(find_scenario, shared)), list(map(find_column, shared))
            )


def _is_right(record: Mapping[str, Any]) -> bool:
    return bool(record["predicted"] == record["score"])


def read_recipe(name: str, args: Arguments) -> dict[str, Any]:
    """Return the recipe of a variant: its file's, with the variant's changes and those of the command line.

    Args:
        name (`str`): One of `VARIANTS`.
        args (`Namespace`): The command's arguments.
    """
    variant = VARIANTS[name]
    is_sft = variant.trainer == "train_sft"
    recipe = yaml.safe_load((args.sft_config if is_sft else args.config).read_text(encoding="utf-8"))
    given = dict(change.split("=", 1) for change in (args.sft_set if is_sft else args.set)) | variant.changes
    recipe |= {key: yaml.safe_load(value) for key, value in given.items()}
    recipe["seed"] = args.seed
    recipe.setdefault("reasoning", True)
    own = {"model_name_or_path": args.model, "dataset": args.dataset}
    return recipe | {key: value for key, value in own.items() if value is not None}


def evaluation_arguments(recipe: dict[str, Any], args: Arguments) -> dict[str, Any]:
    """Return what `evaluate` is told of a variant, beside where its model and its results are."""
    arguments = {
        "dataset": recipe["dataset"],
        "reasoning": str(recipe["reasoning"]).lower(),
        "max_new_tokens": args.max_new_tokens,
        "out_of_domain": args.out_of_domain,
        "limit": args.limit,
        "seed": args.seed,
    }
    return {key: value for key, value in arguments.items() if value is not None}


def warm_up(recipe: dict[str, Any], args: Arguments) -> Path:
    """Return a model that knows the form of an answer, with or without thoughts, and nothing of the scores.

    Args:
        recipe (`dict`): Recipe of the variant that starts from it.
        args (`Namespace`): The command's arguments.
    """
    folder = args.output_dir / f"warm_up_{'with' if recipe['reasoning'] else 'without'}_thoughts"
    data = folder / "data_set"
    if not data.is_dir():
        _write_random_answers(recipe["dataset"], data, recipe["reasoning"], args.seed)
    own = {name: recipe[name] for name in ("model_name_or_path", "reasoning", "seed")}
    own |= {"dataset": str(data), "max_steps": args.warm_up_steps, "train": "full"}
    return train("train_sft", {**read_recipe("sft_full", args), **own}, folder, args.launcher)


def _write_random_answers(dataset: str, target: Path, reasoning: bool, seed: int) -> None:
    """Write the training split with a target answer of random score for each sample."""
    samples = load_samples(dataset, "train")
    form = _THOUGHTFUL if reasoning else _THOUGHTLESS
    rng = random.Random(seed)
    scores = sorted(set(samples["score"]))
    samples = samples.add_column("target", [form.format(rng.choice(scores)) for _ in range(len(samples))])
    unfinished = target.with_name(f".{target.name}.tmp")
    (unfinished / "data").mkdir(parents=True, exist_ok=True)
    samples.to_parquet(unfinished / "data" / "train-00000.parquet")
    unfinished.replace(target)


def train(trainer: str, recipe: dict[str, Any], folder: Path, launcher: str | None) -> Path:
    """Train unless finished; return the folder of the checkpoint.

    Args:
        trainer (`str`): `"train_grpo"` or `"train_sft"`.
        recipe (`dict`): Its arguments.
        folder (`Path`): Working folder.
        launcher (`str`, *optional*): Command that starts it in other processes.
    """
    model = folder / "model"
    # Training writes run.json last.
    if not (model / "run.json").is_file():
        config = folder / "recipe.yaml"
        write_file(config, yaml.safe_dump({**recipe, "output_dir": str(model)}))
        start = time.perf_counter()
        _run(launcher, trainer, {"config": config, "resume": "true"})
        JsonLines(folder / "sessions.jsonl").append([{"training_s": round(time.perf_counter() - start, 1)}])
    return model


def _run(launcher: str | None, module: str, arguments: dict[str, Any]) -> None:
    """Run a command of WavReward in this process or by a launcher; raise its error or `CalledProcessError`."""
    options = [str(part) for key, value in arguments.items() for part in (f"--{key}", value)]
    if launcher is not None:
        subprocess.run([*shlex.split(launcher), "-m", f"{_MODULES}.{module}", *options], check=True)
        return
    import_module(f"{_MODULES}.{module}").main(options)
    # Free the memory for the next model.
    gc.collect()


def _settings(args: Arguments) -> dict[str, Any]:
    places = ("output_dir", "result", "launcher")
    return {name: value for name, value in vars(args).items() if name not in places}


if __name__ == "__main__":
    main()
