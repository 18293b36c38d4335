"""The arguments of every command that loads a reward model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdiareward.common.hub import ModelRevision
from sdiareward.common.package_files import NANO


if TYPE_CHECKING:
    from .model_spec import ModelSpec


@dataclass(kw_only=True)
class ModelArguments(ModelRevision):
    model: str = field(
        default=str(NANO),
        metadata={"help": "checkpoint folder or Hub id (default: the nano checkpoint of the package)"},
    )
    dtype: str | None = field(
        default=None, metadata={"help": "dtype of the backbone, such as bfloat16, or fast (default: the checkpoint's)"}
    )
    device: str | None = field(
        default=None, metadata={"help": "device, such as cuda:0 (default: an accelerator if there is one)"}
    )
    batch_tokens: int | None = field(default=None, metadata={"help": "tokens in one forward pass", "minimum": 1})
    prompt_file: str | None = field(
        default=None,
        metadata={
            "help": "system prompts instead of the model's: YAML or JSON from criterion to text, or one text for all"
        },
    )

    def make_spec(self) -> ModelSpec:
        from sdiareward.pairs.prompts import read_prompts

        from .model_spec import ModelSpec

        prompts = read_prompts(self.prompt_file) if self.prompt_file else None
        return ModelSpec(self.model, prompts, self.dtype, self.device, batch_tokens=self.batch_tokens)
