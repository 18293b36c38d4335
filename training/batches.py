"""Batches of preference pairs for training.

A `PairBatch` has the pairs that one process computes in one step. The trainer splits it into micro-batches by a budget
of tokens. A micro-batch is one forward pass, chosen and rejected sides together, without padding (`packed_forward`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.trainer_pt_utils import BatchRebalanceSampler

from sdiareward.modeling_sdiareward import SDiaRewardModel, SDiaRewardOutput
from sdiareward.pairs.labels import name_criterion
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.batching import DIALOGUE_ERRORS, DialoguePreparer, Message
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.packed_forward import encode_clips, run_packed_batch


# Columns of a row from which batches are made: its name, its tokens, and its number in the data set.
PREPARED = ("pair_id", "length", "row")


@dataclass(frozen=True)
class PairBatch:
    pair_ids: list[str]
    lengths_tokens: list[int]  # Of both sides together.
    is_real: list[bool]  # False for a pair that repeats another, so that every process has as many.
    chosen: list[Any]
    rejected: list[Any]
    clips: Mapping[bytes, torch.Tensor] = field(default_factory=dict)
    clips_as: str = "mels"  # Or `"vectors"`, which the audio tower computed before training.

    def __len__(self) -> int:
        return len(self.pair_ids)

    def select(self, first: int, stop: int) -> PairBatch:
        names = ("pair_ids", "lengths_tokens", "is_real", "chosen", "rejected")
        return replace(self, **{name: getattr(self, name)[first:stop] for name in names})

    def make_inputs(self) -> dict[str, Any]:
        """Return the arguments of `compute_packed_rewards`, the chosen sides first."""
        dialogues = self.chosen + self.rejected
        messages = [message for dialogue in dialogues for message in dialogue]
        clips = {digest: self.clips[digest] for message in messages for digest in message.clips}
        num_tokens = sum(len(message.input_ids) for message in messages)
        # Nothing is padded; TRL counts tokens with the mask.
        mask = torch.ones(1, num_tokens, dtype=torch.long)
        return {"dialogues": dialogues, self.clips_as: clips, "attention_mask": mask}


def compute_packed_rewards(
    model: SDiaRewardModel,
    dialogues: Sequence[Sequence[Message]],
    mels: Mapping[bytes, torch.Tensor] | None = None,
    vectors: Mapping[bytes, torch.Tensor] | None = None,
    **kwargs: Any,
) -> SDiaRewardOutput:
    """Compute rewards in one packed pass, from mel features or from the audio tower's vectors of the clips."""

    def encode(digests: list[bytes]) -> list[torch.Tensor]:
        if vectors is not None:
            return [vectors[digest] for digest in digests]
        # All dialogues of the pass may be written ones.
        if not digests:
            return []
        assert mels is not None
        distinct = list(dict.fromkeys(digests))
        encoded = dict(zip(distinct, encode_clips(model, [mels[digest] for digest in distinct]), strict=True))
        return [encoded[digest] for digest in digests]

    output = run_packed_batch(model, dialogues, encode)
    return SDiaRewardOutput(logits=output.rewards, pooled=output.pooled)


class PairCollator:
    """Make a [`PairBatch`] of rows from `precompute_pairs`; rows without turns are read from `pairs`."""

    def __init__(self, processor: SDiaRewardProcessor, pairs: Sequence[Mapping[str, Any]] | None = None):
        self._prepare = DialoguePreparer(processor)
        self._pairs = pairs

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, PairBatch]:
        is_encoded = "clip_vectors" in rows[0]
        if not is_encoded and self._pairs is not None:
            rows = [row if SIDES[0] in row else {**self._pairs[row["row"]], **row} for row in rows]
        clips: dict[bytes, torch.Tensor] = {}
        read = self._read_encoded if is_encoded else self._read_audio
        sides: dict[str, Any] = {side: [read(row, side, clips) for row in rows] for side in SIDES}
        clips_as = "vectors" if is_encoded else "mels"
        return {"pairs": PairBatch(**list_labels(rows), **sides, clips=clips, clips_as=clips_as)}

    def _read_audio(self, row: Mapping[str, Any], side: str, clips: dict[bytes, torch.Tensor]) -> list[Message]:
        """Return the messages of a side; add the mel features of its clips to `clips`."""
        try:
            read = self._prepare.read(row[side], name_criterion(row.get("criterion")))
        except DIALOGUE_ERRORS as error:
            raise type(error)(f"pair {row['pair_id']}, {side}: {error}") from error
        clips.update(self._prepare.compute_mels(read.clips))
        return read.messages

    def _read_encoded(self, row: Mapping[str, Any], side: str, clips: dict[bytes, torch.Tensor]) -> list[Message]:
        """Return the messages of a side; add the vectors of its clips to `clips`."""
        numbers = row[f"{side}_clips"]
        digests = [row["clip_digests"][number] for number in numbers]
        for number, digest in zip(numbers, digests, strict=True):
            stored = np.frombuffer(row["clip_vectors"][number], dtype=np.float16)
            clips[digest] = torch.from_numpy(stored.reshape(-1, row["width"]).astype(np.float32))
        return self._prepare.split_messages(np.asarray(row[f"{side}_ids"], dtype=np.int64), digests)


@dataclass(frozen=True)
class FeatureBatch(PairBatch):
    """Pairs with cached features as sides, each of shape `(num_rows, hidden_size)`."""

    def make_inputs(self) -> dict[str, Any]:
        """Return the arguments of `SDiaRewardHead.forward`, the chosen sides first, padded on the right."""
        features = self.chosen + self.rejected
        lengths = torch.tensor([len(feature) for feature in features])
        hidden_states = pad_sequence(features, batch_first=True)
        mask = torch.arange(hidden_states.shape[1]) < lengths[:, None]
        return {"hidden_states": hidden_states, "attention_mask": mask.long()}


class FeatureCollator:
    """Make a [`FeatureBatch`] of rows from `cache_pairs`."""

    def __init__(self, features: Mapping[str, torch.Tensor] | FeatureCache):
        self.features = features

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, PairBatch]:
        sides: dict[str, Any] = {side: [self.features[row[f"{side}_key"]] for row in rows] for side in SIDES}
        return {"pairs": FeatureBatch(**list_labels(rows), **sides)}


def list_labels(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    numbers = [row["row"] for row in rows]
    return {
        "pair_ids": [row["pair_id"] for row in rows],
        "lengths_tokens": [row["length"] for row in rows],
        "is_real": [number not in numbers[:index] for index, number in enumerate(numbers)],
    }


class StepSampler(BatchRebalanceSampler):
    """Distribute the pairs of each optimizer step over the processes: the same number each, of similar lengths.

    Which pairs make a step depends on the seed and the epoch, not on the number of processes. Where a last step cannot
    be divided evenly, a process repeats its first pair. A last step with fewer pairs than processes is dropped.
    """

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of this process in each step, longest pair first."""
        # Not the sum: an epoch of one seed would be another epoch of its neighbour.
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.lengths)).tolist()
        for step in range(len(self)):
            indices = order[step * self.effective_batch_size : (step + 1) * self.effective_batch_size]
            indices.sort(key=lambda index: (-self.lengths[index], index))
            own = indices[self.rank :: self.dp_size]
            most = -(-len(indices) // self.dp_size)
            yield own + own[:1] * (most - len(own))

    def __len__(self) -> int:
        has_tail = self.remainder >= self.dp_size and not self.drop_last
        return self.num_full_batches + has_tail


def split_by_tokens(lengths_tokens: Sequence[int], batch_tokens: int, num_single: int) -> list[tuple[int, int]]:
    """Split a step into micro-batches that each hold at most `batch_tokens`, or one pair."""
    bounds, first, filled = [], 0, 0
    for index, length in enumerate(lengths_tokens):
        if index > first and (filled + length > batch_tokens or index >= len(lengths_tokens) - num_single):
            bounds.append((first, index))
            first, filled = index, 0
        filled += length
    return [*bounds, (first, len(lengths_tokens))]
