"""`sdiareward score`: score dialogues given as files, or a data set of pairs or dialogues."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.package_files import NANO

from .arguments import InputError


if TYPE_CHECKING:
    from sdiareward.scoring.model_spec import ModelSpec
    from sdiareward.scoring.results import Summary
    from sdiareward.scoring.scorer import Scorer

_OF_DATASETS = ("output", "split", "name", "limit", "audio_root", "strict", "engine", "num_actors", "gpus_per_actor")
_OF_RAY = ("num_actors", "gpus_per_actor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    forms = ("DIALOGUE [OTHER] [options]", "--dataset DATA --output FOLDER [options]")
    parser.usage = "\n       ".join(f"sdiareward score {form}" for form in forms)
    parser.epilog = "Start it with `accelerate launch --num_processes N -m sdiareward.cli score ...` to use N devices."
    form = "JSON file with the turns' role, audio and text, or folder of audio files by name, 2 before 10"
    parser.add_argument("dialogue", type=Path, nargs="?", help=form)
    parser.add_argument("other", type=Path, nargs="?", help="a second dialogue to compare with the first")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    _add_model_arguments(parser.add_argument_group("model"))
    _add_dataset_arguments(parser.add_argument_group("data set"))
    ray = parser.add_argument_group("data set on Ray")
    ray.add_argument("--num-actors", type=_positive, help="copies of the model (default: one for each GPU, or one)")
    ray.add_argument("--gpus-per-actor", type=float, help="GPUs of each copy (default: 1 if there are any)")


def _add_model_arguments(group: Any) -> None:
    group.add_argument("--model", help="checkpoint folder or Hub id (default: the nano checkpoint of the package)")
    criterion = "prompt to judge under (default: joint; for a data set, what its column `criterion` says, else joint)"
    group.add_argument("--criterion", help=criterion)
    prompts = "system prompts in place of the model's: JSON from criterion to text, or a text for every criterion"
    group.add_argument("--prompt-file", type=Path, help=prompts)
    group.add_argument("--dtype", help="of the backbone, such as bfloat16 (default: the checkpoint's)")
    group.add_argument("--device", help="such as cuda:0 (default: an accelerator if there is one)")
    group.add_argument("--batch-tokens", type=_positive, help="tokens in one forward pass")


def _add_dataset_arguments(group: Any) -> None:
    forms = "Parquet, JSON or JSON lines file, folder, or Hub id of pairs (chosen, rejected) or dialogues (messages)"
    group.add_argument("--dataset", help=forms)
    resumed = "folder for scores.parquet, skipped.jsonl and identity.json; the same command resumes a killed run"
    group.add_argument("--output", type=Path, help=resumed)
    group.add_argument("--split", help="of the data set; needed if it has several")
    group.add_argument("--name", help="configuration of the data set")
    group.add_argument("--limit", type=_positive, help="score the first so many rows only")
    group.add_argument("--audio-root", help="where relative paths of recordings begin (default: where you are)")
    group.add_argument("--strict", action="store_true", help="exit with 1 if a row had to be skipped")
    group.add_argument("--engine", choices=("local", "ray"), help="what runs it (default: local)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def run(args: argparse.Namespace) -> int:
    """Score what was given; return the exit status."""
    from sdiareward.scoring.model_spec import ScoringError

    _check_form(args)
    try:
        return _score_files(args) if args.dataset is None else _score_dataset(args)
    except ScoringError as error:
        raise InputError(str(error)) from error


def _check_form(args: argparse.Namespace) -> None:
    """Raise unless the arguments are those of one form of the command."""
    if (args.dialogue is None) == (args.dataset is None):
        raise InputError("give either a dialogue's file or --dataset; see `sdiareward score --help`.")
    if args.dataset is not None and args.output is None:
        raise InputError("--dataset needs --output, a folder for the scores.")
    if args.dataset is not None and args.json:
        raise InputError("--json goes with files of dialogues; the scores of a data set are in its --output folder.")
    without = _OF_DATASETS if args.dataset is None else _OF_RAY if args.engine != "ray" else ()
    given = [f"--{name.replace('_', '-')}" for name in without if getattr(args, name)]
    if given:
        needed = "--dataset" if args.dataset is None else "--engine ray"
        raise InputError(f"{', '.join(given)} needs {needed}.")


def _score_files(args: argparse.Namespace) -> int:
    """Score one dialogue, or two and the margin between them."""
    from sdiareward.audio_sdiareward import DialogueError
    from sdiareward.pairs.dialogue_files import read_dialogue
    from sdiareward.pairs.labels import name_criterion

    paths = [args.dialogue] if args.other is None else [args.dialogue, args.other]
    try:
        dialogues = [read_dialogue(path) for path in paths]
    except DialogueError as error:
        raise InputError(str(error)) from error
    criterion = name_criterion(args.criterion)
    scorer = _model_choice(args).load(criterion)
    for path, dialogue in zip(paths, dialogues, strict=True):
        _say_what_is_cut(path, dialogue, scorer.processor.max_turn_s)
    rewards = [_reward(scorer, *dialogue, criterion) for dialogue in zip(paths, dialogues, strict=True)]
    report = _report(paths, rewards, criterion)
    print(json.dumps(report) if args.json else _as_lines(report))
    return 0


def _model_choice(args: argparse.Namespace) -> ModelSpec:
    from sdiareward.pairs.prompts import read_prompts
    from sdiareward.scoring.model_spec import ModelSpec

    try:
        prompts = read_prompts(args.prompt_file) if args.prompt_file else None
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
    model = args.model or str(NANO)
    return ModelSpec(model, prompts, args.dtype, args.device, batch_tokens=args.batch_tokens)


def _say_what_is_cut(path: Path, dialogue: list[dict[str, Any]], max_turn_s: float) -> None:
    """Tell on stderr how many turns the model hears only in part."""
    clips = [
        item["audio"] for turn in dialogue for item in turn["content"] if isinstance(item, dict) and "audio" in item
    ]
    num_long = sum(len(clip["array"]) > max_turn_s * clip["sampling_rate"] for clip in clips)
    if num_long:
        notice = f"{num_long} of {len(clips)} turns are cut: this model hears their first {max_turn_s:g} s"
        print(f"sdiareward: notice: {path}: {notice}", file=sys.stderr)


def _reward(scorer: Scorer, path: Path, dialogue: list[dict[str, Any]], criterion: str) -> float:
    try:
        return scorer.score([dialogue], criterion)[0]
    except ValueError as error:
        raise InputError(f"{path}, {error}") from error


def _report(paths: Sequence[Path], rewards: Sequence[float], criterion: str) -> dict[str, Any]:
    report: dict[str, Any] = {
        "criterion": criterion,
        "dialogues": [{"path": str(path), "reward": reward} for path, reward in zip(paths, rewards, strict=True)],
    }
    if len(rewards) == 2:
        report["margin"] = rewards[0] - rewards[1]
    return report


def _as_lines(report: dict[str, Any]) -> str:
    rows = [(entry["path"], entry["reward"]) for entry in report["dialogues"]]
    if "margin" in report:
        rows.append(("margin", report["margin"]))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value:+.4f}" for name, value in rows)


def _score_dataset(args: argparse.Namespace) -> int:
    """Score a data set and print what became of it."""
    from sdiareward.scoring.dataset import ScoringJob, score_dataset

    names = ("dataset", "split", "name", "limit", "criterion", "audio_root")
    job = ScoringJob(_model_choice(args), **{name: getattr(args, name) for name in names})
    try:
        if args.engine == "ray":
            from sdiareward.scoring.ray_engine import score_on_ray

            options = {"num_actors": args.num_actors, "gpus_per_actor": args.gpus_per_actor}
            summary: Summary | None = score_on_ray(job, args.output, **options)
        else:
            summary = score_dataset(job, args.output)
    except KeyboardInterrupt:
        print(f"sdiareward: interrupted; the same command goes on in {args.output}", file=sys.stderr)
        return 130
    if summary is None:  # One process of several; the main one speaks for all.
        return 0
    print(f"{args.output / 'scores.parquet'}: {_as_sentence(summary)}")
    return int(args.strict and summary.num_skipped > 0)


def _as_sentence(summary: Summary) -> str:
    parts = [f"{summary.num_scored} of {summary.num_rows} rows, {summary.audio_s / 3600:.2f} h of audio"]
    if summary.num_skipped:
        parts.append(f"{summary.num_skipped} skipped (see skipped.jsonl)")
    if summary.num_cut:
        parts.append(f"{summary.num_cut} turns cut to what the model hears")
    speed = f", real-time factor {summary.real_time_factor:.4f}" if summary.real_time_factor else ""
    parts.append(f"{summary.num_new} of them scored now in {summary.seconds:.1f} s{speed}")
    return "; ".join(parts)
