"""Which model scores, and how, from the flags of a command to the `Scorer`; and which data set."""

# Without postponed annotations, which subclasses in other modules could not read.
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from sdiareward.checkpoint_io.models import describe_model, find_checkpoint
from sdiareward.common.hub import DatasetRevision, ModelRevision, require_model
from sdiareward.common.package import NANO
from sdiareward.pairs.prompts import read_prompts


if TYPE_CHECKING:
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

    from .scorer import Scorer

# PyTorch asserts that it was built for a device, and raises RuntimeError when memory runs out. A file of a checkpoint
# that holds another kind of JSON value fails where it is first used.
_LOADING_ERRORS = (OSError, ValueError, RuntimeError, AssertionError, AttributeError, TypeError, LookupError)


class ScoringError(ValueError):
    """Raised for a model, data set or folder that a run cannot work with; the message is for the user."""


@dataclass(frozen=True)
class ModelSpec:
    """A model and the settings to load it with; pickles, so that any process can load it."""

    name: str  # Folder or Hub id of a checkpoint, `"nano"` or `"small"`.
    prompts: Mapping[str, str] | None = None  # By criterion, in place of the checkpoint's.
    dtype: str | None = None  # Of the backbone, such as `"bfloat16"`; or `"fast"`.
    device: str | None = None
    batch_tokens: int | None = None

    @property
    def checkpoint(self) -> str:
        return find_checkpoint(self.name)

    @property
    def weight_bytes(self) -> int:
        """The size of the weights in a folder, which each copy on a CPU takes; 0 for a name on the Hub."""
        return sum(file.stat().st_size for file in Path(self.checkpoint).glob("*.safetensors"))

    def identity(self) -> dict[str, Any]:
        """Return what the rewards of given dialogues depend on: neither the device nor the size of a batch."""
        prompts = {} if self.prompts is None else {"prompts": dict(self.prompts)}
        return {"model": describe_model(self.name), "dtype": self.dtype, **prompts}

    def load(self, criterion: str | None = None, device: str | None = None) -> "Scorer":
        # Before libraries are imported, which takes seconds.
        require_model(self.name)
        from transformers.utils.logging import disable_progress_bar

        from .scorer import Scorer

        disable_progress_bar()
        options: dict[str, Any] = {"device": self.device or device, "batch_tokens": self.batch_tokens}
        with self._explain_errors():
            scorer = Scorer.from_pretrained(self.name, dtype=self.dtype, prompts=self.prompts, **options)
        if criterion is not None and criterion not in scorer.processor.prompts:
            known = ", ".join(sorted(scorer.processor.prompts))
            raise ScoringError(f"criterion is {criterion!r}; this model knows {known}.")
        return scorer

    def load_processor(self) -> "SDiaRewardProcessor":
        checkpoint = self.checkpoint
        from sdiareward.processing_sdiareward import SDiaRewardProcessor

        with self._explain_errors():
            return SDiaRewardProcessor.from_pretrained(checkpoint)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except _LOADING_ERRORS as error:
            reason = str(error).strip().partition("\n")[0]
            reason = reason if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {reason}"
            # A library that finds nothing does not always report that the Hub did not answer.
            reach = "" if Path(self.name).exists() else ", and check the connection to the Hub"
            given = [f"--{name} {getattr(self, name)}" for name in ("device", "dtype") if getattr(self, name)]
            other = f"; or try it without {' and '.join(given)}" if given else ""
            raise ScoringError(
                f"model {self.name}: cannot be loaded ({reason}); give a checkpoint folder or Hub id{reach}{other}."
            ) from error


@Parameter(name="*")
@dataclass(kw_only=True)
class ModelArguments(ModelRevision):
    """The reward model.

    Args:
        model: Checkpoint folder or Hub id; the nano checkpoint of the package by default.
        dtype: Dtype of the backbone, such as bfloat16, or fast; the checkpoint's by default.
        device: Device, such as cuda:0; an accelerator by default, if there is one.
        batch_tokens: Tokens in one forward pass.
        prompt_file: System prompts in place of the model's: YAML or JSON by criterion, or one text for all.
    """

    model: Annotated[str, Parameter(show_default=False)] = str(NANO)
    dtype: str | None = None
    device: str | None = None
    batch_tokens: PositiveInt | None = None
    prompt_file: str | None = None

    def make_spec(self) -> ModelSpec:
        require_model(self.model)
        prompts = read_prompts(self.prompt_file) if self.prompt_file else None
        return ModelSpec(self.model, prompts, self.dtype, self.device, self.batch_tokens)


@Parameter(name="*", group="Data set")
@dataclass(kw_only=True)
class DatasetArguments(DatasetRevision):
    """The pairs or dialogues.

    Args:
        dataset: Table (.csv, .tsv, .json, .jsonl, .parquet), folder or Hub id of pairs or dialogues; or a folder of
            dialogues.
        dataset_config: Configuration of the data set.
        split: Split of the data set; a single file has none.
        audio_root: Folder for relative paths of recordings that are not beside the table.
    """

    dataset: str | None = None
    dataset_config: str | None = None
    split: str | None = None
    audio_root: str | None = None


MODEL, DATASET = ModelArguments(), DatasetArguments()
