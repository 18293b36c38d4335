"""Align the audio tower with the text model: the projection between them learns to make recordings readable.

A backbone such as `small` puts two towers together that have never met. Here the frozen text model predicts the
transcript of a turn from its sound, and the next-token loss trains the projection alone, as adapters of vision are
aligned with language models. The reward is trained afterwards.

`measure_alignment` tells what was learned: how much likelier a transcript is given its own recording than given
another one. Its recordings must be held out.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from sdiareward.common.files import hash_json
from sdiareward.esdr_accuracy.pairwise import wilson_interval
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.sampling import draw_rows
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.batching import DialoguePreparer, Message, Segment, format_reason
from sdiareward.scoring.packed_attention import packed_attention
from sdiareward.scoring.packed_forward import encode_clips, run_packed

from .batches import deserialize_vectors, serialize_vectors
from .resuming import EndsAtLastStep
from .turns import find_turns


logger = logging.getLogger(__name__)

SYSTEM_PROMPT = "Write down what is said."
_CLIPS_AT_A_TIME = 32
_COLUMNS = datasets.Features(
    {
        "input_ids": datasets.List(datasets.Value("int32")),
        "num_text_tokens": datasets.Value("int32"),
        "vectors": datasets.Value("large_binary"),
        "source": datasets.Value("string"),
        "group_id": datasets.Value("string"),
    }
)


def read_clips(
    pairs: datasets.Dataset,
    processor: SDiaRewardProcessor,
    model: SDiaRewardModel,
    folder: Path,
    *,
    max_clip_s: float,
    max_clips: int | None = None,
    seed: int = 0,
) -> datasets.Dataset:
    """Return the distinct turns of pairs with their transcripts, encoded by the frozen audio tower.

    Args:
        pairs (`datasets.Dataset`): Pairs from `loading.load_pairs`; turns of both sides are used.
        processor ([`SDiaRewardProcessor`]): Turns a recording and its transcript into model inputs.
        model ([`SDiaRewardModel`]): Its audio tower encodes them; the vectors are stored in float16.
        folder (`Path`): Where they are stored.
        max_clip_s (`float`): Longer turns are omitted.
        max_clips (`int`, *optional*): How many to draw; by default all are taken.
        seed (`int`, *optional*, defaults to 0): Seed of that draw.

    Returns:
        `datasets.Dataset`: One row per turn: `input_ids`, of which the last `num_text_tokens` are the transcript and
        the end of its message; `vectors`; `source` and `group_id` of the pair. Turns that cannot be heard are omitted
        with a warning.

    Raises:
        ValueError: There are no such turns.
    """
    places = find_turns(pairs, max_clip_s)
    if not places:
        raise ValueError(f"no turn with a transcript lasts at most {max_clip_s:g} s; raise max_clip_s.")
    places = [places[index] for index in draw_rows(len(places), max_clips, seed)]
    tower = {name: tensor for name, tensor in model.model.audio_tower.state_dict().items() if "proj" not in name[:4]}
    content = [[place["digest"] for place in places], hash_tensors(tower), max_clip_s, processor.max_turn_s]
    content.append(processor.stack_factor)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"clips_{hash_json(content)[:16]}.arrow"
    encoder = _ClipEncoder(pairs, processor, model)
    names = [name for name in places[0] if name not in _COLUMNS]
    return datasets.Dataset.from_list(places).map(
        encoder,
        batched=True,
        batch_size=_CLIPS_AT_A_TIME,
        features=_COLUMNS,
        remove_columns=names,
        cache_file_name=str(path),
        new_fingerprint=path.stem,
        desc="Encoding clips",
    )


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a hash of tensors by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


class _ClipEncoder:
    """Make rows of turns: their tokens, and what the audio tower makes of their sound."""

    def __init__(self, pairs: datasets.Dataset, processor: SDiaRewardProcessor, model: SDiaRewardModel):
        self._pairs = pairs
        self._model = model
        self._prepare = DialoguePreparer(processor)
        self._tokenizer: Any = processor.tokenizer

    @torch.inference_mode()
    def __call__(self, columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        places = list(zip(columns["row"], columns["side"], columns["turn"], strict=True))
        rows = {row: self._pairs[row] for row in sorted(set(columns["row"]))}
        turns = [rows[row][side][turn] for row, side, turn in places]
        dialogues = [_as_messages(turn) for turn in turns]
        batch = self._prepare(range(len(turns)), dialogues, ["joint"] * len(turns))
        for index, error in batch.failures.items():
            logger.warning("row %d, %s, turn %d is omitted: %s", *places[index], format_reason(error))
        mels = batch.mels
        # None of these turns may be usable.
        vectors = dict(zip(mels, encode_clips(self._model, list(mels.values())), strict=True)) if mels else {}
        made: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        for index, dialogue in zip(batch.indices, batch.dialogues, strict=True):
            made["input_ids"].append(np.concatenate([message.input_ids for message in dialogue]))
            text = self._tokenizer(turns[index]["text"], add_special_tokens=False)["input_ids"]
            made["num_text_tokens"].append(len(text) + 1)
            made["vectors"].append(serialize_vectors(vectors[dialogue[-1].clips[0]]))
            made["source"].append(columns["source"][index])
            made["group_id"].append(columns["group_id"][index])
        return made


def _as_messages(turn: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a turn with its sound before its words, so that the words are predicted from the sound."""
    content = [{"type": "audio", "audio": turn["audio"]}, {"type": "text", "text": turn["text"]}]
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": content}]


class TranscriptModel(nn.Module):
    """Predict transcripts; of its parameters only the projection is registered, so that checkpoints hold it alone.

    Args:
        model ([`SDiaRewardModel`]): The frozen model; its projection is trained in place.
    """

    def __init__(self, model: SDiaRewardModel):
        super().__init__()
        self.proj = model.model.audio_tower.proj
        self.proj.requires_grad_(True)
        self._model = (model,)

    def forward(self, input_ids: list[Any], num_text_tokens: list[int], vectors: list[torch.Tensor]) -> dict[str, Any]:
        """Compute the loss of a batch of clips.

        Args:
            input_ids (`list[np.ndarray]`): Tokens of each clip.
            num_text_tokens (`list[int]`): Number of tokens at the end of each that are predicted.
            vectors (`list[torch.Tensor]` of shape `(num_audio_tokens, stack_factor * d_model)`): From the audio tower.

        Returns:
            `dict`: `loss`, mean nats per predicted token; `nats`, of shape `(num_clips,)`, the mean of each clip.
        """
        model = self._model[0]
        segments = [Segment(None, [Message(np.asarray(ids, dtype=np.int64))]) for ids in input_ids]
        hidden, layout = run_packed(model, segments, [each.to(model.device) for each in vectors])
        embeddings = model.model.get_input_embeddings().weight
        totals, counts = [], []
        for states, ids, count in zip(hidden.split(layout.lengths), input_ids, num_text_tokens, strict=True):
            # The last token is the line break behind the end of the message.
            logits = nn.functional.linear(states[-count - 2 : -2], embeddings).float()
            target = torch.as_tensor(np.asarray(ids[-count - 1 : -1], dtype=np.int64), device=logits.device)
            totals.append(nn.functional.cross_entropy(logits, target, reduction="sum"))
            counts.append(count)
        nats = torch.stack(totals)
        return {"loss": nats.sum() / sum(counts), "nats": nats.detach() / torch.tensor(counts, device=nats.device)}


class ClipCollator:
    """Make the arguments of [`TranscriptModel`] of rows from `read_clips`.

    Args:
        width (`int`): Size of the audio tower's vectors as they are projected.
    """

    def __init__(self, width: int):
        self._width = width

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return `input_ids`, `num_text_tokens` and `vectors` of the rows."""
        return {
            "input_ids": [np.asarray(row["input_ids"], dtype=np.int64) for row in rows],
            "num_text_tokens": [row["num_text_tokens"] for row in rows],
            "vectors": [deserialize_vectors(row["vectors"], self._width) for row in rows],
        }


class AlignmentTrainer(EndsAtLastStep, Trainer):
    """Train the projection of a model on clips; see `transformers.Trainer`.

    Args:
        model ([`SDiaRewardModel`]): Only its projection is trained.
        args (`transformers.TrainingArguments`): Training arguments.
        kwargs: `train_dataset` and `eval_dataset`, from `read_clips`, and further arguments of the trainer.
    """

    def __init__(self, model: SDiaRewardModel, args: TrainingArguments, **kwargs: Any):
        # The columns are read by the collator.
        args.remove_unused_columns = False
        args.label_names = []
        self.reward_model = model.requires_grad_(False).eval()
        collator = ClipCollator(model.model.audio_tower.proj.in_features)
        super().__init__(TranscriptModel(model), args, data_collator=collator, **kwargs)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the mean next-token loss of the transcripts, in nats."""
        with packed_attention(self.reward_model):
            outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, None, None]:
        """Compute the loss of an evaluation batch."""
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, self._prepare_inputs(inputs)), None, None


@torch.inference_mode()
def measure_alignment(model: SDiaRewardModel, clips: datasets.Dataset, batch_size: int = 16) -> dict[str, Any]:
    """Compare the transcript of each clip given its own sound with the same given the sound of another one.

    The other clip is of another group and of the nearest length, so that length tells nothing.

    Args:
        model ([`SDiaRewardModel`]): The model.
        clips (`datasets.Dataset`): Held-out clips, from `read_clips`.
        batch_size (`int`, *optional*, defaults to 16): Clips in one forward pass.

    Returns:
        `dict`: `num_clips`; `own_nats` and `other_nats`, the mean per token (lower is likelier);
        `own_is_likelier`, the
        share of clips whose own sound makes the transcript likelier, and `interval`, Wilson's at 95%.

    Raises:
        ValueError: The clips are of one group.
    """
    others = _find_other_clips(clips)
    transcripts = TranscriptModel(model)
    collate = ClipCollator(model.model.audio_tower.proj.in_features)
    own: list[float] = []
    other: list[float] = []
    for first in range(0, len(clips), batch_size):
        indices = range(first, min(first + batch_size, len(clips)))
        rows = [clips[index] for index in indices]
        swapped = [_swap_sound(clips[index], clips[others[index]], model.config.audio_token_id) for index in indices]
        with packed_attention(model):
            own += transcripts(**collate(rows))["nats"].tolist()
            other += transcripts(**collate(swapped))["nats"].tolist()
    better = float(np.mean(np.array(own) < np.array(other)))
    return {
        "num_clips": len(own),
        "own_nats": float(np.mean(own)),
        "other_nats": float(np.mean(other)),
        "own_is_likelier": better,
        "interval": wilson_interval(better, len(own)),
    }


def _find_other_clips(clips: datasets.Dataset) -> list[int]:
    """Return for each clip the index of one of another group whose number of audio tokens is nearest."""
    sizes = [len(vectors) for vectors in clips["vectors"]]
    groups = list(clips["group_id"])
    if len(set(groups)) < 2:
        raise ValueError("all clips are of one group; clips of two recordings are needed to compare their sounds.")
    order = sorted(range(len(sizes)), key=lambda index: (sizes[index], index))
    found = [0] * len(order)
    for place, index in enumerate(order):
        sides = (reversed(order[:place]), order[place + 1 :])
        near = [next((other for other in side if groups[other] != groups[index]), None) for side in sides]
        found[index] = min(
            (other for other in near if other is not None), key=lambda other: abs(sizes[other] - sizes[index])
        )
    return found


def _swap_sound(row: Mapping[str, Any], other: Mapping[str, Any], audio_token_id: int) -> dict[str, Any]:
    """Return a row with the sound of another one, and as many audio placeholders as that has."""
    ids, other_ids = (np.asarray(each["input_ids"], dtype=np.int64) for each in (row, other))
    places = np.flatnonzero(ids == audio_token_id)
    count = int((other_ids == audio_token_id).sum())
    swapped = np.concatenate([ids[: places[0]], np.full(count, audio_token_id), ids[places[-1] + 1 :]])
    return {**row, "input_ids": swapped, "vectors": other["vectors"]}
