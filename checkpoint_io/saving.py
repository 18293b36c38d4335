from __future__ import annotations

from pathlib import Path

from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


def save_checkpoint(
    model: SDiaRewardModel, processor: SDiaRewardProcessor, output_dir: str | Path, *, compact: bool = False
) -> None:
    """Save a model and its processor; `compact` stores the backbone in float16, its configuration keeps float32."""
    state_dict = model.state_dict()
    if compact:
        state_dict = {name: t.half() if name.startswith("model.") else t for name, t in state_dict.items()}
    model.save_pretrained(output_dir, state_dict=state_dict)
    processor.save_pretrained(output_dir)
