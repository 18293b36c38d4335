"""The arguments of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


_OF_MODELS = ("dtype", "device", "batch_tokens", "prompt_file")
_OF_JUDGES = ("judges_file", "judge_options", "retry_failed")


@dataclass
class EvalArguments:
    """What to evaluate on what; each is a flag and a key of the YAML given with `--config`."""

    dataset: str = field(metadata={"help": "Folder or Hub name of the pairs, or a .json, .jsonl or .parquet file."})
    output_dir: str = field(metadata={"help": "Folder for scores and results; a killed run resumes there."})
    model: str | None = field(default=None, metadata={"help": "Folder or Hub name of the checkpoint."})
    judge: str | None = field(default=None, metadata={"help": "Name of a judge, in place of a model."})
    judges_file: str | None = field(default=None, metadata={"help": "YAML of judges in place of configs/judges.yaml."})
    judge_options: list[str] = field(
        default_factory=list, metadata={"help": "KEY=VALUE in place of the judge's settings in the file."}
    )
    retry_failed: bool = field(default=False, metadata={"help": "Ask the judge again about pairs without a verdict."})
    dataset_name: str | None = field(default=None, metadata={"help": "Configuration of the data set."})
    split: str = field(default="test", metadata={"help": "Split to evaluate."})
    train_split: str = field(default="train", metadata={"help": "Split the baselines are fitted on."})
    baselines: bool = field(default=True, metadata={"help": "Also measure the acoustic and the text baseline."})
    batch_tokens: int | None = field(default=None, metadata={"help": "Tokens in one forward pass."})
    prompt_file: str | None = field(default=None, metadata={"help": "System prompts instead of the checkpoint's."})
    dtype: str | None = field(default=None, metadata={"help": "Dtype of the backbone, such as bfloat16."})
    device: str | None = field(default=None, metadata={"help": "Such as cuda:0; by default an accelerator if any."})
    limit: int | None = field(default=None, metadata={"help": "Number of pairs to evaluate, from the first on."})
    num_bootstrap: int = field(default=1000, metadata={"help": "Bootstrap draws of the intervals."})
    seed: int = field(default=0, metadata={"help": "Seed of those draws."})
    nan: Literal["error", "wrong"] | None = field(
        default=None,
        metadata={"help": "How a missing reward counts: error (default of models) or wrong (of judges)."},
    )
    strict: bool = field(default=False, metadata={"help": "Exit with 1 if a pair was skipped."})
    report: bool = field(default=False, metadata={"help": "Also write the page report/index.html."})
    compare: list[str] = field(
        default_factory=list, metadata={"help": "output_dirs of other evaluations of these pairs, for the page."}
    )
    training: list[str] = field(
        default_factory=list, metadata={"help": "run.json files of train.py whose rewards the page shows."}
    )
    embed_audio: Literal["open", "all", "none"] = field(
        default="open", metadata={"help": "Recordings the page plays: those with an open licence, all, or none."}
    )

    def __post_init__(self) -> None:
        if (self.compare or self.training) and not self.report:
            raise ValueError("compare and training are shown in the report only: add --report, or omit them.")
        if (self.model is None) == (self.judge is None):
            raise ValueError("give either a model or a judge to evaluate.")
        foreign = _OF_MODELS if self.judge else _OF_JUDGES
        if given := [name for name in foreign if getattr(self, name)]:
            kind, remedy = ("model", "give judge_options") if self.judge else ("judge", "omit it")
            raise ValueError(f"{', '.join(given)} can be set for a {kind} only; {remedy}.")
        self.nan = self.nan or ("error" if self.judge is None else "wrong")
