"""Batches of preference pairs for training: what one process computes in one step, and in what parts.

A step's pairs come as one `PairBatch`. The trainer cuts it into parts by a budget of tokens; a part goes through the
model in one forward pass, chosen and rejected together, laid end to end without padding as in scoring (`packing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import numpy as np
import torch
from transformers.trainer_pt_utils import BatchRebalanceSampler

from sdiareward.modeling_sdiareward import SDiaRewardModel, SDiaRewardOutput
from sdiareward.pairs.loading import turns_to_messages
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.batching import Message, build_prefix_tree
from sdiareward.scoring.packed_forward import AUDIO_ATTENTION, TEXT_ATTENTION, encode_clips, pool_packed, run_packed
from sdiareward.scoring.prefetch import DialoguePreparer


@dataclass(frozen=True)
class PairBatch:
    """Hold some pairs before they are made into tensors.

    Args:
        pair_ids (`list[str]`): What to call each pair.
        lengths_tokens (`list[int]`): Of both sides of each pair together.
        counts (`list[bool]`): False for a pair that is only there to give each process as many.
        chosen (`list`): The chosen side of each pair.
        rejected (`list`): The rejected side of each pair.
        collate (`Callable`): Makes the model's keyword arguments of a list of sides.
    """

    pair_ids: list[str]
    lengths_tokens: list[int]
    counts: list[bool]
    chosen: list[Any]
    rejected: list[Any]
    collate: Callable[[list[Any]], dict[str, Any]]

    def __len__(self) -> int:
        return len(self.pair_ids)

    def part(self, first: int, stop: int) -> PairBatch:
        """Return the pairs from `first` up to, not including, `stop`."""
        names = ("pair_ids", "lengths_tokens", "counts", "chosen", "rejected")
        return replace(self, **{name: getattr(self, name)[first:stop] for name in names})

    def inputs(self) -> dict[str, Any]:
        """Return the model's keyword arguments, the chosen sides first."""
        return self.collate(self.chosen + self.rejected)


def make_batch(
    rows: Sequence[Mapping[str, Any]], sides: Mapping[str, list[Any]], collate: Callable[[list[Any]], dict[str, Any]]
) -> dict[str, PairBatch]:
    """Return what a data loader yields: the batch under the name `pairs`.

    Args:
        rows (`list[dict]`): `pair_id`, `length`, and `row`, the number of the pair in its data set. Where a number
            comes twice, the pair counts once.
        sides (`dict[str, list]`): `chosen` and `rejected` side of each row.
        collate (`Callable`): As in [`PairBatch`].
    """
    numbers = [row["row"] for row in rows]
    counts = [number not in numbers[:index] for index, number in enumerate(numbers)]
    lengths = [row["length"] for row in rows]
    return {"pairs": PairBatch([row["pair_id"] for row in rows], lengths, counts, **sides, collate=collate)}


@dataclass(frozen=True)
class PackedSide:
    """Hold one side of a pair.

    Args:
        messages (`list[Message]`): The dialogue.
        clips (`dict[bytes, torch.Tensor]`): By digest the mel features of its clips or, where these were encoded
            ahead, the audio tower's vectors.
    """

    messages: list[Message]
    clips: dict[bytes, torch.Tensor]


class PairCollator:
    """Make batches of rows of pairs that `pair_encoding.read_pairs` gave.

    Args:
        processor ([`SDiaRewardProcessor`]): Turns dialogues into model inputs.
        pairs (`Sequence[dict]`, *optional*): Where the turns of rows that hold none are read, by the number in `row`.
    """

    def __init__(self, processor: SDiaRewardProcessor, pairs: Sequence[Mapping[str, Any]] | None = None):
        self._prepare = DialoguePreparer(processor)
        self._pairs = pairs

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, PairBatch]:
        """Read the recordings of the rows, or what was made of them ahead.

        Raises:
            ValueError, OSError: A recording cannot be read any more.
        """
        is_encoded = "clip_vectors" in rows[0]
        if not is_encoded and self._pairs is not None:
            rows = [row if SIDES[0] in row else {**self._pairs[row["row"]], **row} for row in rows]
        read = self._from_encoded if is_encoded else self._from_audio
        sides = {side: [read(row, side) for row in rows] for side in SIDES}
        return make_batch(rows, sides, collate_vectors if is_encoded else collate_mels)

    def _from_audio(self, row: Mapping[str, Any], side: str) -> PackedSide:
        criterion = row.get("criterion") or "joint"
        batch = self._prepare([0], [turns_to_messages(row[side])], [criterion])
        if batch.failures:
            error = batch.failures[0]
            raise type(error)(f"pair {row['pair_id']}, {side}: {error}") from error
        return PackedSide(batch.dialogues[0], batch.mels)

    def _from_encoded(self, row: Mapping[str, Any], side: str) -> PackedSide:
        numbers = row[f"{side}_clips"]
        digests = [row["clip_digests"][number] for number in numbers]
        messages = self._prepare.messages(np.asarray(row[f"{side}_ids"], dtype=np.int64), digests)
        vectors = {
            digest: vectors_from_bytes(row["clip_vectors"][number], row["width"])
            for number, digest in zip(numbers, digests, strict=True)
        }
        return PackedSide(messages, vectors)


def vectors_to_bytes(vectors: torch.Tensor) -> bytes:
    """Return the float16 bytes of a clip's vectors, shape `(num_audio_tokens, d_model)`."""
    return vectors.to(torch.float16).cpu().numpy().tobytes()


def vectors_from_bytes(vectors: bytes, width: int) -> torch.Tensor:
    """Return the vectors that `vectors_to_bytes` was given, float32."""
    return torch.from_numpy(np.frombuffer(vectors, dtype=np.float16).reshape(-1, width).astype(np.float32))


def collate_mels(sides: list[PackedSide]) -> dict[str, Any]:
    """Return the arguments of the packed forward for sides with mel features."""
    return _collate(sides, "mels")


def collate_vectors(sides: list[PackedSide]) -> dict[str, Any]:
    """Return the arguments of the packed forward for sides with the audio tower's vectors."""
    return _collate(sides, "vectors")


def _collate(sides: list[PackedSide], name: str) -> dict[str, Any]:
    dialogues = [side.messages for side in sides]
    clips = {digest: clip for side in sides for digest, clip in side.clips.items()}
    num_tokens = sum(len(message.input_ids) for dialogue in dialogues for message in dialogue)
    # Nothing is padded; TRL counts tokens with it.
    return {"dialogues": dialogues, name: clips, "attention_mask": torch.ones(1, num_tokens, dtype=torch.long)}


def use_packed_forward(model: SDiaRewardModel) -> None:
    """Let a model take what `PairCollator` makes, for as long as it lives.

    Args:
        model ([`SDiaRewardModel`]): It is changed. Wrappers call the `forward` of the instance.
    """
    # Not for the time of a forward pass: gradient checkpointing computes attention again during the backward pass.
    model.model.language_model.config._attn_implementation = TEXT_ATTENTION
    model.model.audio_tower.config._attn_implementation = AUDIO_ATTENTION
    model.forward = MethodType(_packed_forward, model)  # type: ignore[method-assign]


def _packed_forward(
    self: SDiaRewardModel,
    dialogues: Sequence[Sequence[Message]],
    mels: Mapping[bytes, torch.Tensor] | None = None,
    vectors: Mapping[bytes, torch.Tensor] | None = None,
    **kwargs: Any,
) -> SDiaRewardOutput:
    """Compute the rewards of dialogues that share their beginnings and their clips; other arguments say nothing."""
    segments, last = build_prefix_tree(dialogues)
    digests = [digest for segment in segments for message in segment.messages for digest in message.clips]
    if vectors is None:
        assert mels is not None
        distinct = list(dict.fromkeys(digests))
        vectors = dict(zip(distinct, encode_clips(self, [mels[digest] for digest in distinct]), strict=True))
    hidden, layout = run_packed(self, segments, [vectors[digest] for digest in digests])
    with torch.autocast(hidden.device.type, enabled=False):
        pooled = pool_packed(self, hidden, layout, last)
    return SDiaRewardOutput(logits=self.reward(pooled), pooled=pooled)


class StepSampler(BatchRebalanceSampler):
    """Deal the pairs of each optimizer step to the processes, each as many, of nearly the same lengths.

    Which pairs make a step depends on the seed and the epoch, not on the number of processes. Where a last step cannot
    be dealt evenly, a process takes its first pair again. A last step with fewer pairs than processes is left out.
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


def split_by_tokens(lengths_tokens: Sequence[int], batch_tokens: int, alone: int) -> list[tuple[int, int]]:
    """Cut a step into parts that each hold at most `batch_tokens`, or one pair.

    Args:
        lengths_tokens (`list[int]`): Of each pair, in order.
        batch_tokens (`int`): Budget of a part.
        alone (`int`): This many pairs at the end are parts of their own.

    Returns:
        `list[tuple[int, int]]`: First pair of each part, and the one behind its last.
    """
    parts, first, filled = [], 0, 0
    for index, length in enumerate(lengths_tokens):
        if index > first and (filled + length > batch_tokens or index >= len(lengths_tokens) - alone):
            parts.append((first, index))
            first, filled = index, 0
        filled += length
    return [*parts, (first, len(lengths_tokens))]
