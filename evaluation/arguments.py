"""The options of an evaluation and of an audit."""

# Without postponed annotations, which subclasses in other modules could not read.
from dataclasses import dataclass, field
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from sdiareward.common.commands import YAML_ONLY
from sdiareward.common.hub import DatasetRevision, make_revision_field
from sdiareward.common.package import NANO
from sdiareward.scoring.model_spec import ModelArguments


_OF_MODELS = ("revision", "dtype", "device", "batch_tokens", "prompt_file")
_OF_JUDGES = ("judges_file", "judge_options", "retry_failed")


@dataclass(kw_only=True)
class PairsArguments(DatasetRevision):
    """The pairs to measure on, and the pairs to fit the baselines on.

    Args:
        criterion: Criterion to score under, such as modality; by default the column criterion, else the criterion of
            the model's training, else joint.
        audio_root: Folder for relative paths of recordings that are not beside the table.
        baseline_data: Data set to fit the baselines on; by default the evaluated one.
        train_split: Split to fit the baselines on; without it they are omitted.
    """

    criterion: str | None = None
    audio_root: str | None = None
    baseline_data: Annotated[str | None, YAML_ONLY] = None
    baseline_revision: Annotated[str | None, YAML_ONLY] = make_revision_field("baseline_data")
    train_split: Annotated[str, YAML_ONLY] = "train"


@Parameter(name="*")
@dataclass(kw_only=True)
class EvalArguments(ModelArguments, PairsArguments):
    """What to evaluate on what.

    Args:
        dataset: Table (CSV, TSV, JSON, JSON lines, Parquet), folder or Hub id of pairs.
        output_dir: Folder for scores and results; a killed run resumes there.
        model: Checkpoint folder or Hub id; the nano checkpoint of the package by default.
        judge: Name of a judge, in place of a model.
        judges_file: YAML of judges in place of configs/judges.yaml.
        judge_options: KEY=VALUE in place of the judge's settings in the file.
        retry_failed: Ask the judge again about pairs without a verdict.
        dataset_config: Configuration of the data set.
        split: Split to evaluate; test by default; a single file has no splits.
        baselines: Also measure the acoustic and the text baseline.
        max_samples: Number of pairs to evaluate, drawn evenly from subsets, recordings and synthesizers.
        num_bootstrap: Bootstrap draws of the intervals.
        seed: Seed of the bootstrap and of the draw of max_samples.
        nan: How a missing reward counts: error (default of models) or wrong (of judges).
        strict: Exit with 1 if a pair was skipped.
        report: Also write the page report/index.html.
        compare: output_dirs of other evaluations of these pairs, for the page.
        training: run.json files of trained models; the page shows their rewards.
        embed_audio: Recordings that the page plays: all, open (licences that allow redistribution), or none.
        calibrate: New folder for a copy of the checkpoint, calibrated on these pairs so that rewards of subsets can be
            compared; use a validation split.
    """

    dataset: str
    output_dir: str
    model: str | None = None  # type: ignore[assignment]
    judge: str | None = None
    judges_file: str | None = None
    judge_options: list[str] = field(default_factory=list)
    retry_failed: Annotated[bool, YAML_ONLY] = False
    dataset_config: str | None = None
    split: str | None = None
    baselines: bool = True
    max_samples: PositiveInt | None = None
    num_bootstrap: Annotated[int, YAML_ONLY] = 1000
    seed: int = 0
    nan: Annotated[Literal["error", "wrong"] | None, YAML_ONLY] = None
    strict: bool = False
    report: bool = False
    compare: list[str] = field(default_factory=list)
    training: Annotated[list[str], YAML_ONLY] = field(default_factory=list)
    embed_audio: Literal["open", "all", "none"] = "all"
    calibrate: str | None = None

    def __post_init__(self) -> None:
        from sdiareward.pairs.loading import choose_split

        if (self.compare or self.training) and not self.report:
            raise ValueError("compare and training are shown in the report only: add --report, or omit them.")
        if self.model is not None and self.judge is not None:
            raise ValueError("give either a model or a judge to evaluate.")
        if self.judge is not None and self.calibrate is not None:
            raise ValueError("calibrate is for a model, and a judge is given; omit one of them.")
        if self.judge is None:
            self.model = self.model or str(NANO)
        foreign = _OF_MODELS if self.judge else _OF_JUDGES
        if given := [name for name in foreign if getattr(self, name)]:
            kind, remedy = ("model", "give judge_options") if self.judge else ("judge", "omit it")
            raise ValueError(f"{', '.join(given)} can be set for a {kind} only; {remedy}.")
        self.split = choose_split(self.dataset, self.split)
        self.nan = self.nan or ("error" if self.judge is None else "wrong")
