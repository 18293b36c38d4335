"""Resume training: which checkpoint, with which settings and pairs, and to the same end as an undisturbed run."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open
from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sdiareward.checkpoint_io.files import ADAPTER_WEIGHTS
from sdiareward.common.errors import UserError
from sdiareward.common.files import hash_json, read_json_object, write_file
from sdiareward.loading_sdiareward import check_adapter

from .arguments import OptionError


logger = logging.getLogger(__name__)
_STATE = "trainer_state.json"
# Without one of them a run would begin anew, or with another optimizer. DeepSpeed and FSDP have folders of both.
_PARTS = {
    "weights": ("*.safetensors", "global_step*", "pytorch_model*"),
    "optimizer": ("optimizer*", "global_step*"),
}
_YES, _NO = ("true", "yes", "1"), ("", "false", "no", "none", "0")
# What a run began with. Hidden, so that they are no part of the checkpoint that the folder becomes.
SETTINGS, PAIRS = ".settings.json", ".pairs.json"
# Settings that a resumed run may change: where files are, how often it logs, evaluates and saves, and how the machine
# computes the same numbers. All others must stay.
_MAY_CHANGE = re.compile(
    r"(?:log|logging|eval|save|hub|trackio|ddp|torch_compile|torch_empty_cache|gradient_checkpointing|activation)_.*"
    r"|(?:.*_)?revisions?|dataloader_(?!drop_last).*|output_dir|(?:more_)?datasets?|dataset_name|audio_root|from_cache"
    r"|resume(?:_from_checkpoint)?|restore_callback_states_from_checkpoint|batch_tokens|per_device_eval_batch_size"
    r"|gradient_checkpointing|torch_compile|use_cpu|disable_tqdm|report_to|run_name|project|debug|do_(?:train|eval)"
    r"|local_rank|enable_jit_checkpoint|skip_memory_metrics|include_for_metrics|batch_eval_metrics"
    r"|prediction_loss_only|push_to_hub"
)


def record_settings(training: TrainingArguments, checkpoint: Path | None, settings: Mapping[str, Any]) -> None:
    """Record the settings of a run that begins; refuse to resume one from a checkpoint that began with others."""
    settings = {**settings, "world_size": training.world_size}
    kept = {name: value for name, value in settings.items() if not _MAY_CHANGE.fullmatch(name)}
    _record(SETTINGS, training, checkpoint, kept, "settings", "give the same values")


def record_training_pairs(
    splits: Mapping[str, Any], training: TrainingArguments, checkpoint: Path | None = None
) -> None:
    """Record which pairs a run trains on; refuse to resume from a checkpoint of a run that began with others."""
    kept = {
        split: f"{len(rows)} pairs, {hash_json([list(rows['pair_id']), list(rows['content'])])[:12]}"
        for split, rows in splits.items()
    }
    _record(PAIRS, training, checkpoint, kept, "pairs", "restore data set and recordings as they were")


def _record(
    name: str, training: TrainingArguments, checkpoint: Path | None, values: Mapping[str, Any], what: str, remedy: str
) -> None:
    now = json.loads(json.dumps(values, default=str))
    if checkpoint is not None:
        # In the checkpoint, or in the folder that holds it.
        path = next((each for each in (checkpoint / name, checkpoint.parent / name) if each.exists()), None)
        if path is None:
            found = f"{checkpoint}: lacks {name}, the {what} that its run began with"
            raise UserError(f"{found}; resume from the folder that the run wrote, or start a new run from it.")
        before = read_json_object(path, "train in another output_dir")
        # An option that another version of a library added or removed cannot be compared.
        if changed := [key for key in now if key in before and before[key] != now[key]]:
            listed = "; ".join(f"{key} was {_show(before[key])}, now {_show(now[key])}" for key in changed)
            began = f"{checkpoint}: its run began with different {what} ({listed})"
            raise OptionError(f"{began}, which cannot change; {remedy}, or train in another output_dir.")
    if not training.process_index:
        output = Path(str(training.output_dir))
        output.mkdir(parents=True, exist_ok=True)
        write_file(output / name, json.dumps(now) + "\n")


def _show(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), 80, placeholder=" ...")


class ResumableTrainer:
    """Mixin of a trainer whose resumed runs end as undisturbed ones; list it before the trainer's class.

    - It takes no step beyond the last one: `transformers.Trainer` checks only after a step whether it was the last.
    - It logs whenever it saves, so that no checkpoint is between two lines of the log: their sums are not saved.
    - `train_loss` is of the whole run. The durations of the last line are of the steps after `resumed_from_step`.
    - A checkpoint has the records of its run: a folder may hold checkpoints of an earlier one.
    """

    def _run_epoch(self: Any, *args: Any, **kwargs: Any) -> None:
        ended = self.state.stateful_callbacks.get("TrainerControl", {}).get("args", {})
        if self.state.global_step >= self.state.max_steps or ended.get("should_training_stop"):
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)  # type: ignore[misc]

    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        bare = self.accelerator.unwrap_model(model or self.model)
        if hasattr(bare, "get_base_model") and Path(resume_from_checkpoint, ADAPTER_WEIGHTS).is_file():
            check_adapter(bare, resume_from_checkpoint)
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _init_training_state(self: Any, max_steps: int, *args: Any, **kwargs: Any) -> Any:
        begun = super()._init_training_state(max_steps, *args, **kwargs)  # type: ignore[misc]
        # A checkpoint holds how often its run logged, evaluated and saved, and would override what is given now.
        self.state.compute_steps(self.args, max_steps)
        best = self.state.best_model_checkpoint
        if best and self.args.load_best_model_at_end and (damage := _find_damage(Path(best))):
            logger.warning("%s: %s; the best model is chosen from the steps that follow.", best, damage)
            self.state.best_metric = self.state.best_model_checkpoint = self.state.best_global_step = None
        tokens = [line["num_tokens"] for line in self.state.log_history if "num_tokens" in line]
        self._total_train_tokens = int(tokens[-1]) if tokens else 0
        return begun

    def _maybe_log_save_evaluate(self: Any, *args: Any, **kwargs: Any) -> None:
        saves_best = self.args.save_strategy == "best" and self.control.should_evaluate
        self.control.should_log |= self.control.should_save or saves_best
        super()._maybe_log_save_evaluate(*args, **kwargs)  # type: ignore[misc]

    def log(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_loss" in logs and self._initial_global_step:
            losses = {line["step"]: line["loss"] for line in self.state.log_history if "loss" in line}
            steps = [0, *losses]
            if steps[-1] == self.state.global_step:
                total = sum(losses[step] * (step - before) for before, step in zip(steps, steps[1:], strict=False))
                logs["train_loss"] = total / self.state.global_step
            logs["resumed_from_step"] = self._initial_global_step
        super().log(logs, start_time)  # type: ignore[misc]

    def _save(self: Any, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)  # type: ignore[misc]
        folder = Path(str(output_dir or self.args.output_dir))
        if self.args.should_save and folder.name.startswith(PREFIX_CHECKPOINT_DIR):
            for name in (SETTINGS, PAIRS):
                if (folder.parent / name).is_file():
                    shutil.copy(folder.parent / name, folder / name)


def choose_checkpoint(training: TrainingArguments, *, resume: bool) -> Path | None:
    """Return the checkpoint to resume from: the named one, or with `resume` the newest that is whole.

    Damaged ones are logged.
    """
    named = str(training.resume_from_checkpoint or "")
    if resume and named.lower() not in _NO:
        given = f"resume is True and resume_from_checkpoint is {named!r}"
        raise OptionError(f"{given}; give resume alone for the newest one, or resume_from_checkpoint alone.")
    if not resume and named.lower() not in _YES:
        if named.lower() in _NO:
            return None
        folder = Path(named)
        if damage := _find_damage(folder):
            raise OptionError(
                f"resume_from_checkpoint: {folder} {damage}; give a folder that training wrote, such as "
                "output_dir/checkpoint-50, or use resume for the newest one."
            )
        return folder
    checkpoints = list_checkpoints(str(training.output_dir))
    for checkpoint in checkpoints:
        if (damage := _find_damage(checkpoint)) is None:
            return checkpoint
        logger.warning("%s: %s; it is not resumed from.", checkpoint, damage)
    if checkpoints:
        found = f"{training.output_dir}: each of its {len(checkpoints)} checkpoints is damaged, the oldest {damage}"
        raise UserError(f"{found}; delete them to begin anew, or train in another output_dir.")
    return None


def _find_damage(checkpoint: Path) -> str | None:
    """Return what is missing or damaged in a checkpoint; tensors in safetensors have no checksum, only a length."""
    if not (checkpoint / _STATE).is_file():
        return f"holds no {_STATE}" if checkpoint.is_dir() else "is not a folder"
    for name, patterns in _PARTS.items():
        if not any(found for pattern in patterns for found in checkpoint.glob(pattern)):
            return f"lacks its {name}"
    for path in sorted(checkpoint.rglob("*")):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):
                    pass
            elif path.suffix == ".json":
                content = json.loads(path.read_text(encoding="utf-8"))
                int(content["global_step"] if path.name == _STATE else 0)
            elif path.suffix in (".bin", ".pt", ".pth"):
                with ZipFile(path) as file:
                    if damaged := file.testzip():
                        raise BadZipFile(f"{damaged} has another checksum")
        except (SafetensorError, BadZipFile, ValueError, KeyError, TypeError) as error:
            return f"{path.name} is damaged ({error})"
    return None


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the complete checkpoints, newest first; an interrupted one lacks the state, written last."""
    folders = [path.parent for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*/{_STATE}")]
    steps = {folder: folder.name.rpartition("-")[2] for folder in folders}
    return sorted((each for each in folders if steps[each].isdecimal()), key=lambda each: -int(steps[each]))
