"""Find the checkpoint from which a run resumes, and end where it ends."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sdiareward.checkpoint_io.files import ADAPTER_WEIGHTS

from .options import OptionError


_STATE = "trainer_state.json"
_YES, _NO = ("true", "yes", "1"), ("", "false", "no", "none", "0")


class EndsAtLastStep:
    """Mixin of a trainer that takes no step beyond `max_steps`; list it before the trainer's class.

    `transformers.Trainer` checks only after a step whether it was the last one. A run that was stopped during the
    evaluation or saving after its last step would take another step when it resumes.
    """

    def _run_epoch(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)  # type: ignore[misc]


def choose_checkpoint(training: TrainingArguments, *, resume: bool, has_adapters: bool) -> Path | None:
    named = str(training.resume_from_checkpoint or "")
    if named.lower() in _NO:
        return find_newest_checkpoint(str(training.output_dir)) if resume else None
    if resume:
        raise OptionError(
            f"resume is True and resume_from_checkpoint is {named!r}; give resume alone for the newest checkpoint of "
            "output_dir, or resume_from_checkpoint alone for that one."
        )
    if named.lower() in _YES:
        return find_newest_checkpoint(str(training.output_dir))
    _require_checkpoint(Path(named), has_adapters)
    return Path(named)


def _require_checkpoint(folder: Path, has_adapters: bool) -> None:
    if _read_step(folder) is None:
        state = f"holds no complete {_STATE}" if folder.is_dir() else "is no folder"
        raise OptionError(
            f"resume_from_checkpoint: {folder} {state}; give a folder that training wrote, such as "
            "output_dir/checkpoint-50, or use resume for the newest one."
        )
    if (folder / ADAPTER_WEIGHTS).is_file() != has_adapters:
        found, wanted = ("no adapters", "adapters") if has_adapters else ("adapters", "a whole model or a head")
        raise OptionError(
            f"resume_from_checkpoint: {folder} holds {found}, but {wanted} is to be trained; give train as in its run."
        )


def _read_step(folder: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder / _STATE).read_text(encoding="utf-8"))["global_step"])
    return None


def find_newest_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the newest complete checkpoint: an interrupted one lacks the trainer's state, written last."""
    steps = {folder: _read_step(folder) for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")}
    complete = {step: folder for folder, step in steps.items() if step is not None}
    return complete[max(complete)] if complete else None
