"""What a run trains to hear: the system prompts, and the seconds of each turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdiareward.configuration_sdiareward import name_prompts
from sdiareward.processing_sdiareward import SDiaRewardProcessor


def apply_heard(
    config: Any, processor: SDiaRewardProcessor, prompts: Mapping[str, str] | None, max_turn_s: float | None = None
) -> None:
    """Replace prompts and `max_turn_s` of a model and its processor; criteria without a new prompt keep theirs."""
    merged = {**processor.prompts, **(prompts or {})}
    if merged != processor.prompts:
        processor.prompts, processor.prompt_version = merged, name_prompts(merged)
    processor.max_turn_s = max_turn_s or processor.max_turn_s
    copy_heard(config, processor)


def copy_heard(config: Any, processor: SDiaRewardProcessor) -> None:
    config.prompts, config.prompt_version = dict(processor.prompts), processor.prompt_version
    config.max_turn_s = processor.max_turn_s
