"""The system prompts that a run trains with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdiareward.configuration_sdiareward import name_prompts
from sdiareward.processing_sdiareward import SDiaRewardProcessor

def apply_prompts(config: Any, processor: SDiaRewardProcessor, prompts: Mapping[str, str] | None) -> None:
    """Replace prompts of a model's configuration and of its processor; criteria without a new one keep theirs."""
    if prompts is None:
        return
    merged = {**processor.prompts, **prompts}
    if merged != processor.prompts:
        processor.prompts, processor.prompt_version = merged, name_prompts(merged)
    copy_prompts(config, processor)


def copy_prompts(config: Any, processor: SDiaRewardProcessor) -> None:
    config.prompts, config.prompt_version = dict(processor.prompts), processor.prompt_version
