"""Load and compute with a model that is sharded over processes: DeepSpeed's ZeRO-3, FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from transformers.integrations import deepspeed


@contextmanager
def loads_whole_weights() -> Iterator[None]:
    """Hide ZeRO-3 from `from_pretrained`; a context manager and a decorator.

    transformers shards what `from_pretrained` loads under ZeRO-3, whatever accelerate's `zero3_init_flag` is. A
    sharded model runs in DeepSpeed's engine only. Our model also encodes recordings before training, and is assembled
    and saved after it. The engine shards a whole model when training starts.
    """
    hidden = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = hidden


def keep_rewards_in_float32(accelerator: Any) -> None:
    """Have FSDP2 return a model's outputs as they are; with bf16 accelerate has it round them to bfloat16."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and getattr(plugin.mixed_precision_policy, "output_dtype", None) is not None:
        plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, output_dtype=None)
