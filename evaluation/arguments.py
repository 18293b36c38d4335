"""The arguments of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sdiareward.common.hub import DatasetRevision, make_revision_field
from sdiareward.common.package_files import NANO
from sdiareward.pairs.loading import choose_split
from sdiareward.scoring.arguments import ModelArguments


_DATA, _MODEL, _JUDGE, _RUN, _PAGE = "data", "model", "judge, in place of a model", "the run", "page"
_OF_MODELS = ("revision", "dtype", "device", "batch_tokens", "prompt_file")
_OF_JUDGES = ("judges_file", "judge_options", "retry_failed")


@dataclass(kw_only=True)
class PairsArguments(DatasetRevision):
    audio_root: str | None = field(
        default=None,
        metadata={"help": "folder that relative paths of recordings begin at that are not found beside the table"},
    )
    baseline_data: str | None = field(
        default=None,
        metadata={
            "help": "data set whose train_split the baselines are fitted on (default: the one that is measured; "
            "without a training split they are omitted)"
        },
    )
    baseline_revision: str | None = make_revision_field("baseline_data", "baseline_data", "dataset")
    train_split: str = field(default="train", metadata={"help": "split that the baselines are fitted on"})


@dataclass(kw_only=True)
class EvalArguments(ModelArguments, PairsArguments):
    """What to evaluate on what; each is a flag and a key of the YAML given with `--config`."""

    dataset: str = field(
        metadata={
            "group": _DATA,
            "help": "Folder or Hub name of pairs, or a .json, .jsonl or .parquet file.",
        }
    )
    output_dir: str = field(
        metadata={"group": _RUN, "help": "Folder for scores and results; a killed run resumes there."}
    )
    model: str | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "group": _MODEL,
            "help": "Folder or Hub name of the checkpoint (default: the nano checkpoint of the package).",
        },
    )
    judge: str | None = field(
        default=None, metadata={"group": _JUDGE, "help": "Name of a judge, in place of a model."}
    )
    judges_file: str | None = field(
        default=None, metadata={"group": _JUDGE, "help": "YAML of judges in place of configs/judges.yaml."}
    )
    judge_options: list[str] = field(
        default_factory=list,
        metadata={"group": _JUDGE, "help": "KEY=VALUE in place of the judge's settings in the file."},
    )
    retry_failed: bool = field(
        default=False, metadata={"group": _JUDGE, "help": "Ask the judge again about pairs without a verdict."}
    )
    dataset_name: str | None = field(
        default=None, metadata={"group": _DATA, "flag": "dataset_config", "help": "Configuration of the data set."}
    )
    split: str | None = field(
        default=None,
        metadata={"group": _DATA, "help": "Split to evaluate (default: test; a single file has no splits)."},
    )
    baselines: bool = field(
        default=True, metadata={"group": _RUN, "help": "Also measure the acoustic and the text baseline."}
    )
    limit: int | None = field(
        default=None,
        metadata={
            "group": _DATA,
            "help": "Number of pairs to evaluate, drawn evenly from subsets, recordings and synthesizers.",
            "minimum": 1,
        },
    )
    num_bootstrap: int = field(default=1000, metadata={"group": _RUN, "help": "Bootstrap draws of the intervals."})
    seed: int = field(default=0, metadata={"group": _RUN, "help": "Seed of those draws and of limit."})
    nan: Literal["error", "wrong"] | None = field(
        default=None,
        metadata={
            "group": _RUN,
            "help": "How a missing reward counts: error (default of models) or wrong (of judges).",
        },
    )
    strict: bool = field(default=False, metadata={"group": _RUN, "help": "Exit with 1 if a pair was skipped."})
    report: bool = field(default=False, metadata={"group": _PAGE, "help": "Also write the page report/index.html."})
    compare: list[str] = field(
        default_factory=list,
        metadata={"group": _PAGE, "help": "output_dirs of other evaluations of these pairs, for the page."},
    )
    training: list[str] = field(
        default_factory=list,
        metadata={"group": _PAGE, "help": "run.json files of train.py whose rewards the page shows."},
    )
    embed_audio: Literal["open", "all", "none"] = field(
        default="all",
        metadata={
            "group": _PAGE,
            "help": "Recordings the page plays: all, or open (those that anyone may pass on), or none.",
        },
    )

    def __post_init__(self) -> None:
        if (self.compare or self.training) and not self.report:
            raise ValueError("compare and training are shown in the report only: add --report, or omit them.")
        if self.model is not None and self.judge is not None:
            raise ValueError("give either a model or a judge to evaluate.")
        if self.judge is None:
            self.model = self.model or str(NANO)
        foreign = _OF_MODELS if self.judge else _OF_JUDGES
        if given := [name for name in foreign if getattr(self, name)]:
            kind, remedy = ("model", "give judge_options") if self.judge else ("judge", "omit it")
            raise ValueError(f"{', '.join(given)} can be set for a {kind} only; {remedy}.")
        self.split = choose_split(self.dataset, self.split)
        self.nan = self.nan or ("error" if self.judge is None else "wrong")
