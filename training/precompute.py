"""Read every pair once before training: which can be used, how long it is, and what a frozen audio tower says of it.

A recording that cannot be read is found here and reported, not in the middle of an epoch. Where the audio tower does
not change, its output is kept, so that the epochs need not compute it again. Under `accelerate launch` each process
reads its share; a run that is started again reads nothing twice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import PartialState

from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.packed_forward import encode_clips
from sdiareward.scoring.prefetch import DialoguePreparer, PreparedBatch, reason_of

from .augmentation import AugmentedPairs
from .batches import vectors_to_bytes


logger = logging.getLogger(__name__)

_PAIRS_AT_A_TIME = 8
_DESCRIPTION = {
    "row": datasets.Value("int64"),
    "pair_id": datasets.Value("string"),
    "length": datasets.Value("int64"),
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
) -> tuple[datasets.Dataset, list[dict[str, Any]]]:
    """Read all pairs of a split.

    Args:
        pairs (`datasets.Dataset` or [`AugmentedPairs`]): Pairs as `loading.load_pairs` gives them.
        processor ([`SDiaRewardProcessor`]): Turns dialogues into model inputs.
        folder (`Path`): Where what is read is kept.
        split (`str`): Name of the split.
        model ([`SDiaRewardModel`], *optional*): Its audio tower, up to the projection, must not change afterwards: its
            output is kept in float16. Without it the collator reads the recordings again.
        model_revision (`str`, *optional*): Hash of the model's weights.

    Returns:
        `tuple[datasets.Dataset, list[dict]]`: Rows that `PairCollator` takes; and for each pair left out its `split`,
        `row`, `pair_id` and `reason`.

    Raises:
        ValueError: No pair can be used.
    """
    state = PartialState()
    kind = "described" if model is None else f"encoded_{str(model.dtype).removeprefix('torch.')}_{model_revision[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    shares = [
        folder / f"{split}_{kind}_{pairs._fingerprint}_{rank}_of_{state.num_processes}.arrow"
        for rank in range(min(state.num_processes, math.ceil(len(pairs) / _PAIRS_AT_A_TIME)))
    ]
    if state.process_index < len(shares):
        # Whole batches: what is encoded together does not depend on the number of processes.
        batches = (row // _PAIRS_AT_A_TIME for row in range(len(pairs)))
        own = [row for row, batch in enumerate(batches) if batch % state.num_processes == state.process_index]
        _read_share(pairs, own, _Reader(pairs, processor, model), shares[state.process_index])
    state.wait_for_everyone()
    found = datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in shares]).sort("row")
    return _usable(pairs, found, split)


def _read_share(pairs: datasets.Dataset, rows: Sequence[int], reader: _Reader, path: Path) -> None:
    datasets.Dataset.from_dict({"row": list(rows)}).map(
        reader,
        batched=True,
        batch_size=_PAIRS_AT_A_TIME,
        features=datasets.Features(_DESCRIPTION | (_ENCODING if reader.model else {})),
        # The fingerprint would have to pickle the model; the name of the file says what it holds.
        cache_file_name=str(path),
        new_fingerprint=path.stem[:64],
        desc="Encoding pairs" if reader.model else "Reading pairs",
    )


class _Reader:
    """Describe some pairs, and encode their clips where there is a model."""

    def __init__(self, pairs: datasets.Dataset, processor: SDiaRewardProcessor, model: SDiaRewardModel | None):
        self.pairs = pairs
        self.model = model
        self._labels = {name: pairs[name] for name in ("criterion", "pair_id") if name in pairs.column_names}
        self._prepare = DialoguePreparer(processor, with_mels=model is not None)

    def __call__(self, columns: Mapping[str, list[int]]) -> dict[str, list[Any]]:
        rows = columns["row"]
        criteria = [self._label("criterion", row) or "joint" for row in rows for _ in SIDES]
        batch = self._prepare(range(2 * len(rows)), Dialogues(self.pairs, rows), criteria)
        lengths, reasons = _describe(batch, len(rows))
        ids = [self._label("pair_id", row) or f"row {row}" for row in rows]
        described: dict[str, list[Any]] = {"row": rows, "pair_id": ids, "length": lengths, "reason": reasons}
        return described if self.model is None else described | self._encode(batch, reasons)

    def _label(self, name: str, row: int) -> str | None:
        return self._labels[name][row] if name in self._labels else None

    @torch.inference_mode()
    def _encode(self, batch: PreparedBatch, reasons: Sequence[str | None]) -> dict[str, list[Any]]:
        assert self.model is not None
        vectors = dict(zip(batch.mels, encode_clips(self.model, list(batch.mels.values())), strict=True))
        dialogues = dict(zip(batch.indices, batch.dialogues, strict=True))
        columns: dict[str, list[Any]] = {name: [] for name in _ENCODING}
        for position, reason in enumerate(reasons):
            sides = [] if reason else [dialogues[2 * position], dialogues[2 * position + 1]]
            clips = [[digest for message in side for digest in message.clips] for side in sides]
            distinct = list(dict.fromkeys(digest for side in clips for digest in side))
            for index, name in enumerate(SIDES):
                ids = [message.input_ids for message in sides[index]] if sides else []
                columns[f"{name}_ids"].append([int(token) for part in ids for token in part])
                columns[f"{name}_clips"].append([distinct.index(digest) for digest in clips[index]] if sides else [])
            columns["clip_digests"].append(distinct)
            columns["clip_vectors"].append([vectors_to_bytes(vectors[digest]) for digest in distinct])
            columns["width"].append(self.model.model.audio_tower.config.d_model)
        return columns


def _describe(batch: PreparedBatch, num_pairs: int) -> tuple[list[int], list[str | None]]:
    """Return the tokens of both sides of each pair, and why it cannot be used, if so."""
    lengths, reasons = [0] * num_pairs, [None] * num_pairs  # type: tuple[list[int], list[str | None]]
    for index, dialogue in zip(batch.indices, batch.dialogues, strict=True):
        lengths[index // 2] += sum(len(message.input_ids) for message in dialogue)
    for index, error in sorted(batch.failures.items(), reverse=True):
        reasons[index // 2] = f"{SIDES[index % 2]}, {reason_of(error)}"
    return lengths, reasons


def _usable(
    pairs: datasets.Dataset, found: datasets.Dataset, split: str
) -> tuple[datasets.Dataset, list[dict[str, Any]]]:
    reasons = found["reason"]
    good = [row for row, reason in enumerate(reasons) if reason is None]
    skipped = [
        {"split": split, "row": row, "pair_id": name, "reason": reason}
        for row, name, reason in zip(found["row"], found["pair_id"], reasons, strict=True)
        if reason is not None
    ]
    if not good:
        raise ValueError(f"none of the {len(pairs)} pairs of {split!r} can be used; check their recordings.")
    if skipped:
        logger.warning("%d of %d pairs of %r cannot be used.", len(skipped), len(pairs), split)
    found = found.remove_columns("reason").select(good)
    # Then a row has no turns: they are encoded, or the collator reads them from the pairs.
    if "clip_vectors" in found.column_names or isinstance(pairs, AugmentedPairs):
        return found, skipped
    kept = pairs.remove_columns([name for name in found.column_names if name in pairs.column_names]).select(good)
    return datasets.concatenate_datasets([kept, found], axis=1), skipped
