"""Reward training on spoken dialogues: TRL's `RewardTrainer` with our collator (paper, section 4, equations 2-4).

Loss, centering and metric names are TRL's own, unchanged: `compute_loss` sees one batch with the chosen dialogues in
its first half and gives `-log sigmoid(r+ - r-)` plus `center_rewards_coefficient * (r+ + r-)^2`. What is added here is
how a pair becomes a batch, and an encoding of the clips ahead of training where the audio tower is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from transformers import BatchFeature, PreTrainedModel
from trl import RewardConfig, RewardTrainer

from .modeling_sdiareward import SDiaRewardModel
from .pairs import SIDES, turns_to_messages
from .processing_sdiareward import SDiaRewardProcessor


class PairCollator:
    """Make one batch of pairs: all chosen dialogues, then all rejected ones.

    Takes rows of pairs, whose audio goes through the processor, or rows that `encode_pairs` made.

    Args:
        processor ([`SDiaRewardProcessor`]): Turns dialogues into model inputs.
    """

    def __init__(self, processor: SDiaRewardProcessor):
        self.processor = processor

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> BatchFeature:
        """Collate rows into the keyword arguments of the model."""
        if "chosen_ids" in rows[0]:
            return self._from_encoded(rows)
        dialogues = [turns_to_messages(row[side]) for side in SIDES for row in rows]
        criteria = [row.get("criterion") or "joint" for row in rows]
        return self.processor(dialogues, criterion=criteria * 2)

    def _from_encoded(self, rows: Sequence[Mapping[str, Any]]) -> BatchFeature:
        # On the right, where the model needs no attention mask.
        batch = self.processor.tokenizer.pad(
            {"input_ids": [row[f"{side}_ids"] for side in SIDES for row in rows]},
            padding_side="right",
            return_tensors="pt",
        )
        clips = [_from_bytes(row[f"{side}_audio_features"], row["audio_width"]) for side in SIDES for row in rows]
        return BatchFeature({**batch, "audio_features": torch.cat(clips)})


def encode_pairs(
    pairs: datasets.Dataset, model: SDiaRewardModel, processor: SDiaRewardProcessor, batch_size: int = 8
) -> datasets.Dataset:
    """Run the frozen part of the audio tower over every pair once, so that the epochs of training need not.

    Args:
        pairs (`datasets.Dataset`): Rows as `load_pairs` gives them.
        model ([`SDiaRewardModel`]): Its audio tower, up to the projection, must not change afterwards.
        processor ([`SDiaRewardProcessor`]): Turns dialogues into model inputs.
        batch_size (`int`, *optional*, defaults to 8): Pairs encoded at a time.

    Returns:
        `datasets.Dataset`: `chosen_ids`, `rejected_ids` (TRL's names for tokenised pairs), `*_audio_features` (float16
        bytes of shape `(num_audio_tokens, audio_width)`), `audio_width`, and `length` in tokens of the longer side.
    """
    model.eval()

    def encode(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        count = len(rows["chosen"])
        columns: dict[str, list[Any]] = {"length": [0] * count, "audio_width": []}
        for side in SIDES:
            encoded = [
                _encode_side(rows[side][i], (rows.get("criterion") or ["joint"] * count)[i], model, processor)
                for i in range(count)
            ]
            columns[f"{side}_ids"] = [ids for ids, _ in encoded]
            columns[f"{side}_audio_features"] = [features.tobytes() for _, features in encoded]
            columns["audio_width"] = [features.shape[1] for _, features in encoded]
            columns["length"] = [max(n, len(ids)) for n, (ids, _) in zip(columns["length"], encoded, strict=True)]
        return columns

    with torch.inference_mode():
        return pairs.map(
            encode,
            batched=True,
            batch_size=batch_size,
            remove_columns=pairs.column_names,
            # The fingerprint would have to pickle the model; a training run keeps its encoding to itself.
            new_fingerprint=f"{pairs._fingerprint[:16]}{id(model):016x}",
            load_from_cache_file=False,
            desc="Encoding clips",
        )


def _encode_side(
    turns: Sequence[Mapping[str, Any]], criterion: str, model: SDiaRewardModel, processor: SDiaRewardProcessor
) -> tuple[list[int], np.ndarray]:
    inputs = processor(turns_to_messages(turns), criterion=criterion).to(model.device)
    features = model.encode_audio(inputs["input_features"], inputs["feature_attention_mask"])
    return inputs["input_ids"][0].tolist(), features.to(torch.float16).cpu().numpy()


def _from_bytes(data: bytes, width: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.float16).reshape(-1, width).astype(np.float32))


class SDiaRewardTrainer(RewardTrainer):
    """Train a reward model on pairs of spoken dialogues; see `trl.RewardTrainer` for what is not said here.

    Args:
        model ([`SDiaRewardModel`], a PEFT model around one, or a head alone): What to train; freeze first what shall
            stay.
        processor ([`SDiaRewardProcessor`]): Saved beside every checkpoint; its tokenizer is the `processing_class`.
        args (`trl.RewardConfig`): Training arguments.
        kwargs: Further arguments of `trl.RewardTrainer`; `train_dataset` and `eval_dataset` hold rows of pairs, or
            rows that `encode_pairs` made, or what another `data_collator` takes.
    """

    _tag_names = ["trl", "reward-trainer", "sdiareward"]

    def __init__(self, model: PreTrainedModel, processor: SDiaRewardProcessor, args: RewardConfig, **kwargs: Any):
        self.processor = processor
        # Trainer drops the columns that the model's signature does not name; ours are made into inputs by the
        # collator.
        args.remove_unused_columns = False
        kwargs.setdefault("data_collator", PairCollator(processor))
        super().__init__(model, args, processing_class=processor.tokenizer, **kwargs)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: RewardConfig, dataset_name: str) -> Any:
        """Leave the rows as they are: the processor reads them in the collator, not a tokenizer here."""
        return dataset

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        self.processor.save_pretrained(output_dir or self.args.output_dir)
