"""`sdiareward score`: score dialogues given as files, or a data set of pairs or dialogues."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sdiareward.common.hub import DatasetRevision
from sdiareward.scoring.arguments import ModelArguments


if TYPE_CHECKING:
    from sdiareward.chat_sdiareward import Dialogue
    from sdiareward.scoring.dataset import Summary
    from sdiareward.scoring.scorer import Scorer

_OF_RAY = ("num_actors", "gpus_per_actor")
_OF_DATASETS = ("output", "split", "name", "limit", "seed", "audio_root", "strict", "engine", *_OF_RAY)
_OF_DATA = "a data set"
_NAMES = {"output": "output_dir", "name": "dataset_config"}


@dataclass(kw_only=True)
class ScoreArguments(ModelArguments, DatasetRevision):
    dialogue: Path | None = field(
        default=None,
        metadata={
            "positional": True,
            "help": "JSON file with the turns' role, audio and text, or folder of audio files by name, 2 before 10; "
            "or, with --output_dir, a folder of dialogues",
        },
    )
    other: Path | None = field(
        default=None, metadata={"positional": True, "help": "a second dialogue to compare with the first"}
    )
    json: bool = field(default=False, metadata={"help": "print one JSON object instead of lines"})
    criterion: str | None = field(
        default=None,
        metadata={"help": "prompt to score under (default: the column `criterion` of a data set, else joint)"},
    )
    form: Literal["turns"] | None = field(
        default=None,
        metadata={"help": "turns: two recordings of one length are turns, not the two channels of a call"},
    )
    dataset: str | None = field(
        default=None,
        metadata={
            "group": _OF_DATA,
            "help": "Parquet, JSON or JSON lines file, folder, or Hub id of pairs (chosen, rejected) or dialogues "
            "(messages), or a folder of dialogues",
        },
    )
    output: Path | None = field(
        default=None,
        metadata={
            "flag": "output_dir",
            "group": _OF_DATA,
            "help": "folder for scores.parquet, skipped.jsonl and summary.json; the same command resumes a killed run",
        },
    )
    split: str | None = field(
        default=None, metadata={"group": _OF_DATA, "help": "split of the data set; needed if it has several"}
    )
    name: str | None = field(
        default=None,
        metadata={
            "flag": "dataset_config",
            "aliases": ("--dataset_name",),
            "group": _OF_DATA,
            "help": "configuration of the data set",
        },
    )
    limit: int | None = field(
        default=None,
        metadata={
            "group": _OF_DATA,
            "help": "number of rows to score, drawn evenly from subsets, recordings and synthesizers (default: all)",
            "minimum": 1,
        },
    )
    seed: int = field(default=0, metadata={"group": _OF_DATA, "help": "seed of that draw (default: 0)"})
    audio_root: str | None = field(
        default=None,
        metadata={
            "group": _OF_DATA,
            "help": "folder that relative paths of recordings begin at that are not found beside the table",
        },
    )
    strict: bool = field(default=False, metadata={"group": _OF_DATA, "help": "exit with 1 if a row was skipped"})
    engine: Literal["local", "ray"] | None = field(
        default=None, metadata={"group": _OF_DATA, "help": "what runs it (default: local)"}
    )
    num_actors: int | None = field(
        default=None,
        metadata={
            "group": _OF_DATA,
            "help": "with ray: copies of the model (default: one for each GPU, or one)",
            "minimum": 1,
        },
    )
    gpus_per_actor: float | None = field(
        default=None,
        metadata={"group": _OF_DATA, "help": "with ray: GPUs of each copy (default: 1 if there are any)"},
    )

    def __post_init__(self) -> None:
        from sdiareward.pairs.dialogue_folders import holds_dialogues

        folders = [path for path in (self.dialogue, self.other) if path is not None and holds_dialogues(path)]
        if len(folders) == 2:
            raise ValueError(
                f"{self.dialogue} and {self.other} are folders of dialogues; `sdiareward compare {self.dialogue} "
                f"{self.other}` compares them."
            )
        if folders == [self.dialogue] and self.dataset is None:
            if self.output is None:
                raise ValueError(
                    f"{self.dialogue}: is a folder of dialogues; add --output_dir, a folder for the scores."
                )
            self.dataset, self.dialogue = str(self.dialogue), None
        if self.dialogue is not None and self.dialogue.is_dir() and self.dataset is None and self.output is not None:
            raise ValueError(
                f"{self.dialogue}: is one dialogue, or holds none; --output_dir takes the scores of a folder of "
                "dialogues or of a --dataset."
            )
        if (self.dialogue is None) == (self.dataset is None):
            raise ValueError("give either a dialogue's file or --dataset; see `sdiareward score --help`.")
        if self.dataset is not None and self.output is None:
            raise ValueError("--dataset needs --output_dir, a folder for the scores.")
        if self.split is not None and self.dataset is not None and Path(self.dataset).is_file():
            raise ValueError(f"{self.dataset}: is one file, which has no splits; omit --split {self.split}.")
        if self.dataset is not None and self.json:
            raise ValueError("--json is for files of dialogues; the scores of a data set are in its --output_dir.")
        foreign = _OF_DATASETS if self.dataset is None else _OF_RAY if self.engine != "ray" else ()
        if given := [f"--{_NAMES.get(name, name)}" for name in foreign if getattr(self, name)]:
            raise ValueError(f"{', '.join(given)} needs {'--dataset' if self.dataset is None else '--engine ray'}.")


def run(args: ScoreArguments) -> int:
    return _score_files(args) if args.dialogue is not None else _score_dataset(args)


def _score_files(args: ScoreArguments) -> int:
    from sdiareward.pairs.labels import name_criterion
    from sdiareward.pairs.messages import read_dialogue

    paths = [path for path in (args.dialogue, args.other) if path is not None]
    dialogues = [read_dialogue(path, args.form) for path in paths]
    criterion = name_criterion(args.criterion)
    scorer = args.make_spec().load(criterion)
    scored = [_score_dialogue(scorer, *dialogue, criterion) for dialogue in zip(paths, dialogues, strict=True)]
    report = _report(scored, criterion)
    print(json.dumps(report, allow_nan=False) if args.json else _as_lines(report))
    return 0


def _score_dialogue(scorer: Scorer, path: Path, dialogue: Dialogue, criterion: str) -> dict[str, Any]:
    """Return the reward and what the model heard; print on stderr which turns are cut or silent."""
    from sdiareward.audio_sdiareward import Heard, describe_unheard

    heard: dict[int, Heard] = {}
    try:
        [reward] = scorer.score([dialogue], criterion, heard=heard)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from error
    for notice in describe_unheard([("", heard[0])]):
        print(f"sdiareward: notice: {path}: {notice}", file=sys.stderr)
    return {"path": str(path), "reward": reward, **asdict(heard[0])}


def _report(scored: Sequence[Mapping[str, Any]], criterion: str) -> dict[str, Any]:
    report: dict[str, Any] = {"criterion": criterion, "dialogues": scored}
    if len(scored) == 2:
        report["margin"] = scored[0]["reward"] - scored[1]["reward"]
    return report


def _as_lines(report: dict[str, Any]) -> str:
    rows = [(entry["path"], entry["reward"]) for entry in report["dialogues"]]
    if "margin" in report:
        rows.append(("margin", report["margin"]))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value:+.4f}" for name, value in rows)


def _score_dataset(args: ScoreArguments) -> int:
    from sdiareward.scoring.dataset import ScoringJob, score_dataset

    names = ("dataset", "split", "name", "limit", "seed", "criterion", "audio_root", "form")
    job = ScoringJob(args.make_spec(), **{name: getattr(args, name) for name in names})
    output = Path(str(args.output))
    if args.engine == "ray":
        from sdiareward.scoring.dataset import score_on_ray

        options: dict[str, Any] = {"num_actors": args.num_actors, "gpus_per_actor": args.gpus_per_actor}
        summary: Summary | None = score_on_ray(job, output, **options)
    else:
        summary = score_dataset(job, output)
    if summary is None:  # Of several processes the main one prints.
        return 0
    hears_s = job.model.load_processor().max_turn_s if summary.num_cut else None
    print(_describe_scores(summary, hears_s, output))
    return int(args.strict and summary.num_skipped > 0)


def _describe_scores(summary: Summary, hears_s: float | None, output: Path) -> str:
    speed = f", real-time factor {summary.real_time_factor:.4f}" if summary.real_time_factor else ""
    lines = [
        f"{summary.num_scored} of {summary.num_rows} rows, {summary.audio_s / 3600:.2f} h of audio; "
        f"{summary.num_new} of them scored now in {summary.seconds:.1f} s{speed}",
        *_as_table(summary.rewards),
    ]
    if summary.num_right is not None:
        share = 100 * summary.num_right / summary.num_scored
        ties = f", {summary.num_ties} ties" if summary.num_ties else ""
        lines.append(f"chosen > rejected in {summary.num_right} of {summary.num_scored} rows ({share:.1f}%){ties}")
    if summary.num_cut:
        lines.append(
            f"{summary.num_cut} turns cut: this model hears their first {hears_s:g} s, "
            f"{summary.audio_s / 3600:.2f} of {summary.given_s / 3600:.2f} h"
        )
    if summary.num_silent:
        more = ", ..." * (summary.num_silent > len(summary.silent_turns))
        lines.append(f"{summary.num_silent} silent turns ({', '.join(summary.silent_turns)}{more})")
    if summary.num_skipped:
        lines.append(f"{summary.num_skipped} skipped:")
        lines += [f"  row {row}: {' '.join(why.split())}" for row, why in summary.reasons.items()]
        if summary.num_skipped > len(summary.reasons):
            lines.append(f"  and {summary.num_skipped - len(summary.reasons)} more in {output / 'skipped.jsonl'}")
    return "\n".join([*lines, f"Table: {output / 'scores.parquet'}"])


def _as_table(rewards: Mapping[str, Mapping[str, float]]) -> list[str]:
    heads = [
        name.replace("q0", "q").replace("q", "") + "%" * name.startswith("q") for name in next(iter(rewards.values()))
    ]
    rows = [[name, *(f"{value:+.3f}" for value in found.values())] for name, found in rewards.items()]
    return ["".join([row[0].ljust(10), *(cell.rjust(9) for cell in row[1:])]) for row in [["", *heads], *rows]]
