"""Write a model and its processor as one checkpoint."""

from __future__ import annotations

from pathlib import Path

from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


def save_checkpoint(
    model: SDiaRewardModel, processor: SDiaRewardProcessor, output_dir: str | Path, *, compact: bool = False
) -> None:
    """Save a model and its processor as one checkpoint.

    Args:
        model (`SDiaRewardModel`): The model.
        processor (`SDiaRewardProcessor`): Processor that belongs to it.
        output_dir (`str` or `Path`): Folder of the checkpoint.
        compact (`bool`, *optional*, defaults to `False`): Store a float32 backbone in float16, half the size on disk;
            its configuration keeps saying float32, in which it is computed. The head stays in float32.
    """
    state_dict = model.state_dict()
    if compact:
        state_dict = {name: t.half() if name.startswith("model.") else t for name, t in state_dict.items()}
    model.save_pretrained(output_dir, state_dict=state_dict)
    processor.save_pretrained(output_dir)
