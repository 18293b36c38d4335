"""Arguments that several commands of `sdiareward` share."""

from __future__ import annotations

from dataclasses import dataclass, field

from sdiareward.common.package_files import NANO


@dataclass(kw_only=True)
class ModelArguments:
    """Which model runs, and how."""

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


@dataclass(kw_only=True)
class TensorArguments:
    """How a checkpoint is written."""

    dtype: str | None = field(
        default=None, metadata={"help": "dtype of the backbone, such as bfloat16 (default: the stored one)"}
    )
    max_shard_size: str = field(default="5GB", metadata={"help": "size of the largest file of tensors"})
