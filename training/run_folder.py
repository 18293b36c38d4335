"""The folder of a training run: first weights of a new model, record of its pairs, and the final checkpoint."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from trl import RewardConfig

from sdiareward.checkpoint_io.files import save_checkpoint
from sdiareward.checkpoint_io.models import find_checkpoint, fingerprint_model
from sdiareward.checkpoint_io.nano import build_nano
from sdiareward.checkpoint_io.training_record import RECORD
from sdiareward.common.files import write_file
from sdiareward.common.hub import fetch_snapshot
from sdiareward.common.provenance import write_provenance
from sdiareward.common.user_errors import UserError
from sdiareward.configuration_sdiareward import name_prompts

from .arguments import TrainArguments
from .precompute import READ_AHEAD
from .prompts import copy_heard
from .resuming import PAIRS, find_record, record_settings
from .setup import TrainingSetup, assemble_full_model
from .trainer import SDiaRewardTrainer


_INITIAL_MODEL, _ADAPTER, _TRAINED = "init", "adapter", "trained"


def resolve_base_model(name: str, training: TrainingArguments) -> str:
    """Return the checkpoint to start from: `"small"` is that of the package, `"nano"` a new one."""
    if name != "nano":
        found = find_checkpoint(name)
        if not Path(found).is_dir():
            fetch_snapshot(found, ["config.json"])
        return found
    folder = Path(str(training.output_dir)) / _INITIAL_MODEL
    with training.main_process_first(local=False):
        if not training.process_index:
            build_nano(folder, seed=training.seed)
    return str(folder)


def gives_rewards(model: torch.nn.Module) -> bool:
    """Return whether a model was trained before: a new score head is zero."""
    return any(bool(parameter.any()) for name, parameter in model.named_parameters() if "score" in name.split("."))


def record_run_settings(
    args: TrainArguments, base_model: str, training: RewardConfig, checkpoint: Path | None
) -> None:
    """Record the settings of a run, or require those that the run of a checkpoint began with."""
    settings = {**asdict(args), **training.to_dict()}
    # What a step holds is their product.
    steps = ("per_device_train_batch_size", "gradient_accumulation_steps")
    settings[" x ".join(steps)] = settings.pop(steps[0]) * settings.pop(steps[1])
    settings["model_name_or_path"] = f"files {fingerprint_model(base_model)[:12]}"
    settings["prompt_file"] = (prompts := args.read_prompts()) and name_prompts(prompts)
    record_settings(training, checkpoint, settings)


def record_training_pairs(splits: Mapping[str, Any], training: RewardConfig, checkpoint: Path | None = None) -> None:
    """Record which pairs a run trains on; refuse to resume from a checkpoint of a run that began with others."""
    output = Path(str(training.output_dir))
    path, found = output / PAIRS, {}
    for split, rows in splits.items():
        names = json.dumps([list(rows["pair_id"]), list(rows["content"])])
        found[split] = {"num_pairs": len(rows), "sha256": hashlib.sha256(names.encode()).hexdigest()}
    begun = path if checkpoint is None else find_record(checkpoint, PAIRS)
    before = json.loads(begun.read_text(encoding="utf-8")) if checkpoint is not None and begun.exists() else found
    if before != found:
        counts = (f"{before[split]['num_pairs']} of {split}, now {found[split]['num_pairs']}" for split in found)
        raise UserError(
            f"{begun.parent}: began with other pairs ({'; '.join(counts)}): recordings were removed or added since, "
            "or the data set has changed; restore it as it was, or train in another output_dir."
        )
    if not training.process_index:
        write_file(path, json.dumps(found) + "\n")


def save_final_model(
    trainer: SDiaRewardTrainer,
    setup: TrainingSetup,
    args: TrainArguments,
    base_model: str,
    training: RewardConfig,
    heard: Mapping[str, Any],
) -> None:
    output = Path(str(training.output_dir))
    folder = output / (_ADAPTER if args.train == "lora" else _TRAINED)
    # In all processes: weights that are sharded between them are gathered.
    trainer.save_model(str(folder))
    if not trainer.is_world_process_zero():
        return
    (folder / "training_args.bin").unlink(missing_ok=True)
    model = assemble_full_model(folder, args, base_model, training)
    # Adapters and a head are put on the base model, which has its own.
    copy_heard(model.config, setup.processor)
    save_checkpoint(model, setup.processor, output, compact=args.save_compact)
    write_file(output / "skipped.jsonl", "".join(json.dumps(pair.to_dict()) + "\n" for pair in setup.skipped))
    write_provenance(
        output / RECORD,
        arguments=args,
        training=training.to_dict(),
        num_skipped_pairs=len(setup.skipped),
        num_cut_turns=setup.num_cut_turns,
        **heard,
        history=trainer.state.log_history,
    )
    for name in (READ_AHEAD, _TRAINED):
        if (output / name).exists():
            shutil.rmtree(output / name)
