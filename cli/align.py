"""`sdiareward align`: teach the projection of a backbone to hear, before its reward is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal


if TYPE_CHECKING:
    from transformers import TrainingArguments


@dataclass
class AlignArguments:
    """What to align, on which recordings."""

    dataset: str = field(
        metadata={
            "help": "folder or repository of pairs with the splits train and validation; the turns of both sides are "
            "used, with their transcripts"
        }
    )
    model: str = field(
        default="small",
        metadata={
            "help": "checkpoint whose projection is trained; small or nano for a new one, small with the aligned "
            "projection that the package has (default: small)"
        },
    )
    dataset_config: str | None = field(
        default=None, metadata={"help": "configuration of the data set, for instance modality"}
    )
    max_clip_s: float = field(default=8.0, metadata={"help": "omit turns that last longer, in seconds (default: 8)"})
    max_clips: int | None = field(
        default=None, metadata={"help": "how many turns to train on, drawn by the seed (default: all)", "minimum": 1}
    )
    dtype: Literal["float32", "bfloat16"] = field(
        default="float32", metadata={"help": "dtype of the frozen text model during training (default: float32)"}
    )
    measure_split: str = field(
        default="test", metadata={"help": "split whose clips show what was learned (default: test)"}
    )
    measure_clips: int = field(
        default=200, metadata={"help": "how many of its clips, drawn by the seed (default: 200)", "minimum": 2}
    )
    resume: bool = field(default=False, metadata={"help": "resume from the newest checkpoint in output_dir"})


def run(args: AlignArguments, training: TrainingArguments) -> None:
    """Train the projection, and write the model with `alignment.json`, what it has learned."""
    from sdiareward.common.locks import lock_folder

    with lock_folder(str(training.output_dir)):
        align(args, training)


def align(args: AlignArguments, training: TrainingArguments) -> Path:
    """Train the projection of a model on the transcripts of a data set.

    Returns:
        `Path`: The folder of the checkpoint, `output_dir`; its score head is as it was.

    Raises:
        KeyboardInterrupt: It was interrupted; the message tells how to resume.
        UserError: The data lack a split, or hold no turn that can be used.
    """
    import torch
    from transformers import set_seed

    from sdiareward.checkpoint_io.saving import save_checkpoint
    from sdiareward.checkpoint_io.small import save_projection
    from sdiareward.checkpoint_io.training_record import RECORD, describe_heard
    from sdiareward.common.files import write_file
    from sdiareward.common.provenance import write_provenance
    from sdiareward.pairs.loading import load_pairs
    from sdiareward.training.alignment import AlignmentTrainer, measure_alignment
    from sdiareward.training.ending import describe_interruption
    from sdiareward.training.resuming import choose_checkpoint
    from sdiareward.training.run_folder import resolve_base_model
    from sdiareward.training.setup import load_model

    checkpoint = choose_checkpoint(training, resume=args.resume, has_adapters=False)
    base_model = resolve_base_model(args.model, training)
    heard = describe_heard(load_pairs(args.dataset, "train", name=args.dataset_config), [base_model])
    set_seed(training.seed)
    model, processor, clips = _load(args, training, base_model)
    before = measure_alignment(model, clips["measured"])
    trainer = AlignmentTrainer(model, training, train_dataset=clips["train"], eval_dataset=clips["validation"])
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(describe_interruption(trainer)) from None
    after = measure_alignment(model.eval(), clips["measured"])
    output = Path(str(training.output_dir))
    whole, _ = load_model(base_model, torch.float32)
    whole.model.audio_tower.proj.load_state_dict(model.model.audio_tower.proj.state_dict())
    save_checkpoint(whole, processor, output, compact=True)
    save_projection(whole, output)
    result = {"split": args.measure_split, "num_training_clips": len(clips["train"]), "before": before, "after": after}
    write_file(output / "alignment.json", json.dumps(result, indent=2) + "\n")
    history = trainer.state.log_history
    write_provenance(output / RECORD, arguments=args, training=training.to_dict(), **heard, history=history)
    print(_describe(result, output))
    return output


def _load(args: AlignArguments, training: TrainingArguments, base_model: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return the model, its processor, and the clips to train, to validate and to measure on."""
    import torch

    from sdiareward.pairs.loading import load_pairs
    from sdiareward.training.alignment import read_clips
    from sdiareward.training.setup import load_model

    model, processor = load_model(base_model, torch.float32)
    model.to(training.device).eval()
    folder = Path(str(training.output_dir)) / "clips"
    clips = {}
    limits = {"train": args.max_clips, "validation": args.measure_clips, "measured": args.measure_clips}
    for name, split in (("train", "train"), ("validation", "validation"), ("measured", args.measure_split)):
        pairs = load_pairs(args.dataset, split, name=args.dataset_config)
        clips[name] = read_clips(
            pairs,
            processor,
            model,
            folder,
            max_clip_s=args.max_clip_s,
            max_clips=limits[name],
            seed=training.seed,
        )
    # The text model is frozen, and rounding it costs the trained projection nothing.
    model.model.language_model.to(getattr(torch, args.dtype))
    return model, processor, clips


def _describe(result: dict[str, Any], output: Path) -> str:
    """Return what was learned, and the next command."""
    lines = [f"Model: {output}"]
    for when in ("before", "after"):
        found = result[when]
        low, high = found["interval"]
        lines.append(
            f"{when} training: {found['own_nats']:.2f} nats per token given the own sound, {found['other_nats']:.2f} "
            f"given another one; the own one is likelier in {100 * found['own_is_likelier']:.1f}% of "
            f"{found['num_clips']} clips ({100 * low:.1f}-{100 * high:.1f})"
        )
    lines.append(f"Next: sdiareward train --model {output} --train lora --train_projection True ...")
    return "\n".join(lines)
