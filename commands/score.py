"""`sdiareward score`: score dialogues given as files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import InputError


if TYPE_CHECKING:
    from ..scoring import Scorer

_COMMITTED_CHECKPOINT = Path(__file__).resolve().parents[1] / "checkpoints" / "nano"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    form = "JSON file with the turns' role, audio and text, or folder of audio files in the order of their names"
    parser.add_argument("dialogue", type=Path, help=form)
    parser.add_argument("other", type=Path, nargs="?", help="a second dialogue to compare with the first")
    parser.add_argument("--model", help="checkpoint folder or Hub id (default: the nano checkpoint of the repository)")
    parser.add_argument("--criterion", default="joint", help="prompt to judge under (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")


def run(args: argparse.Namespace) -> int:
    """Score one dialogue, or two and the margin between them; return the exit status."""
    from ..dialogue_files import DialogueError, read_dialogue

    paths = [args.dialogue] if args.other is None else [args.dialogue, args.other]
    try:
        dialogues = [read_dialogue(path) for path in paths]
    except DialogueError as error:
        raise InputError(str(error)) from error
    scorer = _load_scorer(args.model)
    if args.criterion not in scorer.processor.prompts:
        known = ", ".join(sorted(scorer.processor.prompts))
        raise InputError(f"criterion is {args.criterion!r}; this model knows {known}.")
    for path, dialogue in zip(paths, dialogues, strict=True):
        _say_what_is_cut(path, dialogue, scorer.processor.max_turn_s)
    rewards = [_reward(scorer, *dialogue, args.criterion) for dialogue in zip(paths, dialogues, strict=True)]
    report = _report(paths, rewards, args.criterion)
    print(json.dumps(report) if args.json else _as_lines(report))
    return 0


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


def _load_scorer(model: str | None) -> Scorer:
    if model is None and not _COMMITTED_CHECKPOINT.is_dir():
        raise InputError("no model was given and the package has no checkpoint beside it; name one with --model.")
    from transformers.utils.logging import disable_progress_bar

    from ..scoring import Scorer

    disable_progress_bar()
    name = model or str(_COMMITTED_CHECKPOINT)
    try:
        return Scorer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"model {name}: cannot be loaded ({reason}); give a checkpoint folder or Hub id.") from error


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
