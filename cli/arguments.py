"""Arguments that several commands of `sdiareward` share."""

from __future__ import annotations

from dataclasses import dataclass, field

from sdiareward.common.hub import make_revision_field


@dataclass(kw_only=True)
class TensorArguments:
    revision: str | None = make_revision_field("source", "the checkpoint", aliases="--model_revision")
    dtype: str | None = field(
        default=None, metadata={"help": "dtype of the backbone, such as bfloat16 (default: the stored one)"}
    )
    max_shard_size: str = field(default="5GB", metadata={"help": "size of the largest file of tensors"})
