"""Read every pair once before training: whether it can be used, its length, and the output of a frozen audio tower.

A recording that cannot be read is reported here, not in the middle of an epoch. Where the audio tower is frozen, its
output is stored, so that no epoch computes it again. Under `accelerate launch` each process reads its share, with as
many workers as its data loader has. A resumed run reads nothing twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import PartialState
from torch.utils.data import DataLoader

from sdiareward.common.files import hash_json
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.labels import name_criterion
from sdiareward.pairs.loading import name_pairs
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.batching import DialoguePreparer, Message, format_reason
from sdiareward.scoring.packed_forward import encode_clips

from .augmentation import AugmentedPairs
from .batches import serialize_vectors
from .usable_pairs import SkippedPair, explain_equal_sides, explain_side, select_usable


# Below the run's folder: what was computed of the pairs before training.
READ_AHEAD = "read_ahead"
_PAIRS_AT_A_TIME = 8
_DESCRIPTION = {
    "row": datasets.Value("int64"),
    "pair_id": datasets.Value("string"),
    "length": datasets.Value("int64"),
    "num_cut": datasets.Value("int64"),
    "content": datasets.Value("string"),
    "reason": datasets.Value("string"),
}
_ENCODING = {
    **{f"{side}_ids": datasets.List(datasets.Value("int32")) for side in SIDES},
    **{f"{side}_clips": datasets.List(datasets.Value("int32")) for side in SIDES},
    "clip_digests": datasets.List(datasets.Value("binary")),
    "clip_vectors": datasets.List(datasets.Value("large_binary")),
    "width": datasets.Value("int64"),
}


def precompute_pairs(
    pairs: datasets.Dataset,
    processor: SDiaRewardProcessor,
    folder: Path,
    *,
    split: str,
    model: SDiaRewardModel | None = None,
    model_revision: str = "",
    num_workers: int = 0,
) -> tuple[datasets.Dataset, list[SkippedPair]]:
    """Read all pairs of a split, and encode their clips where a model with a frozen audio tower is given."""
    state = PartialState()
    kind = "described" if model is None else f"encoded_{str(model.dtype).removeprefix('torch.')}_{model_revision[:16]}"
    content = _fingerprint(pairs, processor)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    shares = [
        folder / f"{split}_{kind}_{content}_{rank}_of_{state.num_processes}.arrow"
        for rank in range(min(state.num_processes, math.ceil(len(pairs) / _PAIRS_AT_A_TIME)))
    ]
    if state.process_index < len(shares):
        # Whole batches: which clips are encoded together must not depend on the number of processes.
        batches = (row // _PAIRS_AT_A_TIME for row in range(len(pairs)))
        own = [row for row, batch in enumerate(batches) if batch % state.num_processes == state.process_index]
        read = _Reader(pairs, processor, with_mels=model is not None)
        _read_share(own, read, model, shares[state.process_index], num_workers)
    state.wait_for_everyone()
    found = datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in shares]).sort("row")
    return _join_turns(pairs, found, split)


def _fingerprint(pairs: datasets.Dataset, processor: SDiaRewardProcessor) -> str:
    """Return a hash of all that the rows depend on but the model."""
    content = pairs.fingerprint() if isinstance(pairs, AugmentedPairs) else fingerprint_pairs([], pairs)
    tokenizer: Any = processor.tokenizer
    settings: list[Any] = [sorted(_DESCRIPTION), processor.prompts, processor.max_turn_s, processor.stack_factor]
    settings.append(processor.feature_extractor.to_dict())
    return hash_json(
        [content, name_pairs(pairs), _list_criteria(pairs), *settings, tokenizer.backend_tokenizer.to_str()]
    )


def _list_criteria(pairs: datasets.Dataset) -> list[str | None]:
    return list(pairs["criterion"]) if "criterion" in pairs.column_names else [None] * len(pairs)


def _read_share(
    rows: Sequence[int], read: _Reader, model: SDiaRewardModel | None, path: Path, num_workers: int
) -> None:
    # Begins when it is asked for the first batch: never if all is stored.
    batches = _read_batches(rows, read, num_workers)

    def describe(columns: Mapping[str, list[int]]) -> dict[str, list[Any]]:
        batch = next(batches)
        return batch.columns if model is None else batch.columns | _encode(batch, model)

    datasets.Dataset.from_dict({"row": list(rows)}).map(
        describe,
        batched=True,
        batch_size=_PAIRS_AT_A_TIME,
        features=datasets.Features(_DESCRIPTION | (_ENCODING if model else {})),
        # The fingerprint would have to pickle the model; the name of the file tells what it holds.
        cache_file_name=str(path),
        new_fingerprint=path.stem[:64],
        desc="Encoding pairs" if model else "Reading pairs",
    )


def _read_batches(rows: Sequence[int], read: _Reader, num_workers: int) -> Iterator[_Batch]:
    chunks = [list(rows[first : first + _PAIRS_AT_A_TIME]) for first in range(0, len(rows), _PAIRS_AT_A_TIME)]
    # A generator of its own: adapters are drawn after this, and must not depend on what is stored already.
    options: dict[str, Any] = {"num_workers": num_workers, "generator": torch.Generator()}
    yield from DataLoader(chunks, batch_size=None, collate_fn=read, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Batch:
    columns: dict[str, list[Any]]
    sides: list[list[list[Message]]]
    mels: Mapping[bytes, torch.Tensor]


class _Reader:
    """Read some pairs, also in the process of a data loader: it has no model."""

    def __init__(self, pairs: datasets.Dataset, processor: SDiaRewardProcessor, *, with_mels: bool):
        self.pairs = pairs
        self._pair_ids = name_pairs(pairs)
        self._criteria = _list_criteria(pairs)
        self._prepare = DialoguePreparer(processor, with_mels=with_mels)

    def __call__(self, rows: Sequence[int]) -> _Batch:
        criteria = [name_criterion(self._criteria[row]) for row in rows for _ in SIDES]
        batch = self._prepare(range(2 * len(rows)), Dialogues(self.pairs, list(rows)), criteria)
        reasons: list[str | None] = [None] * len(rows)
        for index, error in sorted(batch.failures.items(), reverse=True):
            reasons[index // 2] = explain_side(index % 2, format_reason(error))
        dialogues = dict(zip(batch.indices, batch.dialogues, strict=True))
        pairs = [[dialogues.get(2 * place, []), dialogues.get(2 * place + 1, [])] for place in range(len(rows))]
        reasons = [reason or explain_equal_sides(pair) for reason, pair in zip(reasons, pairs, strict=True)]
        sides = [[] if reason else pair for reason, pair in zip(reasons, pairs, strict=True)]
        lengths = [sum(len(message.input_ids) for side in pair for message in side) for pair in sides]
        ids = [self._pair_ids[row] for row in rows]
        num_cut = [0] * len(rows)
        for index, heard in batch.heard.items():
            num_cut[index // 2] += len(heard.cut_turns)
        columns: dict[str, list[Any]] = {"row": list(rows), "pair_id": ids, "length": lengths, "num_cut": num_cut}
        columns |= {"content": list(map(_digest, sides)), "reason": reasons}
        return _Batch(columns, sides, batch.mels)


def _digest(pair: Sequence[Sequence[Message]]) -> str:
    """Hash what the model reads of a pair: tokens and clips, the chosen side first."""
    keys = [
        [(message.input_ids.tolist(), [clip.hex() for clip in message.clips]) for message in side] for side in pair
    ]
    return hash_json(keys)


@torch.inference_mode()
def _encode(batch: _Batch, model: SDiaRewardModel) -> dict[str, list[Any]]:
    # None of these pairs may be usable.
    encoded = encode_clips(model, list(batch.mels.values())) if batch.mels else []
    vectors = dict(zip(batch.mels, encoded, strict=True))
    columns: dict[str, list[Any]] = {name: [] for name in _ENCODING}
    for pair in batch.sides:
        clips = [[digest for message in side for digest in message.clips] for side in pair]
        distinct = list(dict.fromkeys(digest for side in clips for digest in side))
        for index, name in enumerate(SIDES):
            ids = [message.input_ids for message in pair[index]] if pair else []
            columns[f"{name}_ids"].append([int(token) for part in ids for token in part])
            columns[f"{name}_clips"].append([distinct.index(digest) for digest in clips[index]] if pair else [])
        columns["clip_digests"].append(distinct)
        columns["clip_vectors"].append([serialize_vectors(vectors[digest]) for digest in distinct])
        columns["width"].append(model.model.audio_tower.proj.in_features)
    return columns


def _join_turns(
    pairs: datasets.Dataset, found: datasets.Dataset, split: str
) -> tuple[datasets.Dataset, list[SkippedPair]]:
    """Return the usable rows, with their turns where the collator needs them; and the skipped pairs."""
    reasons = {row: reason for row, reason in enumerate(found["reason"]) if reason is not None}
    usable, skipped = select_usable(split, found["pair_id"], reasons)
    found = found.remove_columns("reason").select(usable)
    # Encoded rows need no turns, and the collator reads those of augmented pairs.
    if "clip_vectors" in found.column_names or isinstance(pairs, AugmentedPairs):
        return found, skipped
    kept = pairs.remove_columns([name for name in found.column_names if name in pairs.column_names]).select(usable)
    return datasets.concatenate_datasets([kept, found], axis=1), skipped
