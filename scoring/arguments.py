"""The options of every command that loads a reward model, or reads pairs or dialogues."""

# Without postponed annotations, which subclasses in other modules could not read.
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from sdiareward.common.hub import DatasetRevision, ModelRevision
from sdiareward.common.package import NANO


if TYPE_CHECKING:
    from .model_spec import ModelSpec


@Parameter(name="*", group="Model")
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

    def make_spec(self) -> "ModelSpec":
        from sdiareward.pairs.prompts import read_prompts

        from .model_spec import ModelSpec

        prompts = read_prompts(self.prompt_file) if self.prompt_file else None
        return ModelSpec(self.model, prompts, self.dtype, self.device, batch_tokens=self.batch_tokens)


@Parameter(name="*", group="Data set")
@dataclass(kw_only=True)
class DatasetArguments(DatasetRevision):
    """The pairs or dialogues.

    Args:
        dataset: Parquet, JSON or JSON lines file, folder, or Hub id of pairs or dialogues; or a folder of dialogues.
        dataset_config: Configuration of the data set.
        split: Split of the data set; a single file has none.
        audio_root: Folder that relative paths of recordings begin at that are not found beside the table.
    """

    dataset: str | None = None
    dataset_config: str | None = None
    split: str | None = None
    audio_root: str | None = None


MODEL, DATASET = ModelArguments(), DatasetArguments()
