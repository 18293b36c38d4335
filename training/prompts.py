"""The system prompts that a run trains with: applied to what is trained, and recorded for a run that resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl import RewardConfig

from sdiareward.common.files import write_file
from sdiareward.common.user_errors import UserError
from sdiareward.configuration_sdiareward import name_prompts
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .arguments import TrainArguments


# Hidden, so that it is no part of the checkpoint that the folder becomes.
_RECORD = ".prompts.json"


def record_prompts(args: TrainArguments, training: RewardConfig, checkpoint: Path | None) -> None:
    """Record which prompts a run trains with; refuse to resume from a checkpoint of a run that had others."""
    output, found = Path(str(training.output_dir)), args.read_prompts()
    record = checkpoint.parent / _RECORD if checkpoint else None
    before = json.loads(record.read_text(encoding="utf-8")) if record and record.exists() else found
    if before != found:
        changed = sorted({*(before or {}), *(found or {})})
        raise UserError(
            f"{checkpoint}: was trained with other system prompts (prompt_file, criteria {changed}); resume with "
            "those, or train in another output_dir."
        )
    if not training.process_index:
        output.mkdir(parents=True, exist_ok=True)
        write_file(output / _RECORD, json.dumps(found, ensure_ascii=False) + "\n")


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
