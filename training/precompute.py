"""Read every pair once before training: whether it can be used, its length, and the output of a frozen audio tower.

A recording that cannot be read is reported here, not in the middle of an epoch. Where the audio tower is frozen, its
output is stored, so that no epoch computes it again. Under `accelerate launch` each process reads its share, with as
many workers as its data loader has. A resumed run reads nothing twice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate import PartialState
from datasets.arrow_writer import ArrowWriter
from torch.utils.data import ConcatDataset, DataLoader
from tqdm.auto import tqdm

from sdiareward.common.errors import Skipped
from sdiareward.common.files import hash_json, replace_atomically
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import name_criterion
from sdiareward.pairs.loading import name_pairs
from sdiareward.pairs.rows import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.batching import DialoguePreparer, Message, format_reason
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.outcomes import UNREADABLE
from sdiareward.scoring.packed_forward import encode_clips
from sdiareward.scoring.scorer import Scorer

from .augmentation import AugmentedPairs


logger = logging.getLogger(__name__)
# Below the run's folder: what was computed of the pairs before training.
READ_AHEAD = "read_ahead"
EQUAL_SIDES, TOO_LONG = "equal_sides", "too_long"
_PAIRS_AT_A_TIME = 8
_DESCRIPTION = {
    **dict.fromkeys(("row", "length", "longest", "num_cut"), datasets.Value("int64")),
    **dict.fromkeys(("pair_id", "content", "kind", "reason"), datasets.Value("string")),
}
_ENCODING = {
    **{f"{side}_ids": datasets.List(datasets.Value("int32")) for side in SIDES},
    **{f"{side}_clips": datasets.List(datasets.Value("int32")) for side in SIDES},
    "clip_digests": datasets.List(datasets.Value("binary")),
    "clip_vectors": datasets.List(datasets.Value("large_binary")),
    "width": datasets.Value("int64"),
}


@dataclass(frozen=True)
class SkippedPair(Skipped):
    """A pair that a training run cannot use; `item` is its `pair_id`."""

    split: str
    row: int

    def to_dict(self) -> dict[str, Any]:
        return {"split": self.split, "row": self.row, "pair_id": self.item, **self.explain()}


def precompute_pairs(
    pairs: Any,
    processor: SDiaRewardProcessor,
    folder: Path,
    *,
    split: str,
    model: SDiaRewardModel | None = None,
    model_revision: str = "",
    num_workers: int = 0,
    max_length: int | None = None,
) -> tuple[datasets.Dataset, list[SkippedPair]]:
    """Read all pairs of a split, and encode their clips where a model with a frozen audio tower is given.

    Returns:
        The usable rows, with their turns where the collator needs them, and the pairs that are skipped.
    """
    state = PartialState()
    kind = "described" if model is None else f"encoded_{str(model.dtype).removeprefix('torch.')}_{model_revision[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{split}_{kind}_{_fingerprint(pairs, processor)[:16]}"
    num_shares = min(state.num_processes, math.ceil(len(pairs) / _PAIRS_AT_A_TIME))
    shares = [folder / f"{name}_{rank}_of_{state.num_processes}.arrow" for rank in range(num_shares)]
    if state.process_index < len(shares):
        # Whole batches: which clips are encoded together must not depend on the number of processes.
        batches = (row // _PAIRS_AT_A_TIME for row in range(len(pairs)))
        own = [row for row, batch in enumerate(batches) if batch % state.num_processes == state.process_index]
        read = _Reader(pairs, processor, with_mels=model is not None)
        _read_share(own, read, model, shares[state.process_index], num_workers, split)
    state.wait_for_everyone()
    found = datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in shares])
    found = found.select(np.argsort(found["row"]))
    usable, skipped = _select_usable(found, split, max_length)
    found = found.remove_columns(["kind", "reason", "longest"]).select(usable)
    # Encoded rows need no turns. The collator reads the turns of augmented pairs.
    if model is not None or isinstance(pairs, AugmentedPairs):
        return found, skipped
    kept = pairs.remove_columns([name for name in found.column_names if name in pairs.column_names]).select(usable)
    return datasets.concatenate_datasets([kept, found], axis=1), skipped


def cache_pairs(
    splits: Mapping[str, Any],
    cache: FeatureCache,
    load_scorer: Callable[[], Scorer],
    *,
    max_length: int | None = None,
    num_workers: int = 0,
) -> tuple[dict[str, datasets.Dataset], list[SkippedPair]]:
    """Compute missing features, under `accelerate launch` a share per process; return rows for `FeatureCollator`."""
    state = PartialState()
    rows, skipped = {}, []
    dialogues: list[Dialogues] = []
    prompts, groups, is_own = [], [], []
    for split, pairs in splits.items():
        options: dict[str, Any] = {"split": split, "max_length": max_length, "num_workers": num_workers}
        found, bad = precompute_pairs(pairs, cache.processor, cache.folder / READ_AHEAD, **options)
        rows[split] = found.select_columns(["row", "pair_id", "num_cut", "content"])
        skipped += bad
        numbers, criteria = found["row"], list_criteria(pairs)
        dialogues.append(Dialogues(pairs, numbers))
        prompts += [criteria[row] for row in numbers for _ in SIDES]
        groups += [(split, row) for row in numbers for _ in SIDES]
        is_own += [row % state.num_processes == state.process_index for row in range(len(numbers)) for _ in SIDES]
    every: Any = ConcatDataset(dialogues)  # type: ignore[arg-type]
    keys: Any = cache.keys(every, prompts, progress=True)
    own = [key if is_mine else None for key, is_mine in zip(keys, is_own, strict=True)]
    if cache.missing(own):
        cache.fill(load_scorer(), every, prompts, keys=own, groups=groups, progress=True)
    state.wait_for_everyone()
    cache.refresh()
    for split, found in rows.items():
        chosen, rejected = keys[: 2 * len(found) : 2], keys[1 : 2 * len(found) : 2]
        del keys[: 2 * len(found)]
        lengths = [sum(map(cache.num_rows, pair)) for pair in zip(chosen, rejected, strict=True)]
        found = found.add_column("chosen_key", chosen).add_column("rejected_key", rejected)
        rows[split] = found.add_column("length", lengths)
    return rows, skipped


def list_criteria(pairs: Any) -> list[str]:
    names = pairs["criterion"] if "criterion" in pairs.column_names else [None] * len(pairs)
    return list(map(name_criterion, names))


def _fingerprint(pairs: Any, processor: SDiaRewardProcessor) -> str:
    """Return a hash of all that the rows depend on but the model."""
    content = pairs.fingerprint() if isinstance(pairs, AugmentedPairs) else fingerprint_pairs([], pairs)
    tokenizer: Any = processor.tokenizer
    settings: list[Any] = [processor.prompts, processor.max_turn_s, processor.stack_factor]
    settings += [processor.feature_extractor.to_dict(), tokenizer.backend_tokenizer.to_str()]
    return hash_json([content, name_pairs(pairs), list_criteria(pairs), *settings])


def _select_usable(found: datasets.Dataset, split: str, max_length: int | None) -> tuple[list[int], list[SkippedPair]]:
    """Return the numbers of the usable rows, and the others with their reasons."""
    usable, skipped = [], []
    described = zip(*(found[name] for name in ("pair_id", "kind", "reason", "longest")), strict=True)
    for row, (pair_id, kind, reason, longest) in enumerate(described):
        if reason is None and max_length is not None and longest > max_length:
            kind, reason = TOO_LONG, f"a side has {longest} tokens; max_length is {max_length}"
        if reason is None:
            usable.append(row)
        else:
            skipped.append(SkippedPair(pair_id, kind, reason, split, row))
    first = f"The first, {skipped[0].item}: {skipped[0].reason}" if skipped else ""
    if not usable:
        raise ValueError(f"none of the {len(found)} pairs of {split!r} can be used; check their recordings. {first}")
    if skipped:
        logger.warning("%d of %d pairs of %r cannot be used. %s", len(skipped), len(found), split, first)
    return usable, skipped


def _read_share(
    rows: Sequence[int], read: _Reader, model: SDiaRewardModel | None, path: Path, num_workers: int, split: str
) -> None:
    """Describe some rows in a file, unless it is there: its name has all that its content depends on."""
    if path.exists():
        return
    columns = datasets.Features(_DESCRIPTION | (_ENCODING if model else {}))
    with replace_atomically(path) as temporary, ArrowWriter(path=str(temporary), features=columns) as writer:
        for batch in _read_batches(rows, read, num_workers, f"{'encoding' if model else 'reading'} {split} pairs"):
            writer.write_batch(batch.columns if model is None else batch.columns | _encode(batch, model))
        writer.finalize()


def _read_batches(rows: Sequence[int], read: _Reader, num_workers: int, title: str) -> Iterator[_Batch]:
    chunks = [list(rows[first : first + _PAIRS_AT_A_TIME]) for first in range(0, len(rows), _PAIRS_AT_A_TIME)]
    # A generator of its own: adapters are drawn after this, and must not depend on what is stored already.
    options: dict[str, Any] = {"num_workers": num_workers, "generator": torch.Generator()}
    with tqdm(desc=title, total=len(rows), unit="pair") as bar:
        for batch in DataLoader(chunks, batch_size=None, collate_fn=read, **options):  # type: ignore[arg-type]
            bar.update(len(batch.sides))
            yield batch


@dataclass(frozen=True)
class _Batch:
    columns: dict[str, list[Any]]
    sides: list[list[list[Message]]]  # Empty for a pair that cannot be used.
    mels: Mapping[bytes, torch.Tensor]


class _Reader:
    """Read some pairs, also in the process of a data loader: it has no model."""

    def __init__(self, pairs: Any, processor: SDiaRewardProcessor, *, with_mels: bool):
        self.pairs = pairs
        self._pair_ids = name_pairs(pairs)
        self._criteria = list_criteria(pairs)
        self._prepare = DialoguePreparer(processor)
        self._with_mels = with_mels

    def __call__(self, rows: Sequence[int]) -> _Batch:
        criteria = [self._criteria[row] for row in rows for _ in SIDES]
        read, failures = self._prepare.read_each(range(2 * len(rows)), Dialogues(self.pairs, list(rows)), criteria)
        columns: dict[str, list[Any]] = {name: [] for name in _DESCRIPTION}
        sides = []
        for place, row in enumerate(rows):
            both = (2 * place, 2 * place + 1)
            pair = [read[index].messages if index in read else [] for index in both]
            kind = reason = None
            if failed := [index for index in both if index in failures]:
                kind, reason = UNREADABLE, f"{SIDES[failed[0] % 2]}, {format_reason(failures[failed[0]])}"
            elif [message.key for message in pair[0]] == [message.key for message in pair[1]]:
                # The same tokens and the same clips, decoded and cut: the pair teaches nothing.
                kind = EQUAL_SIDES
                reason = "both sides are equal as the model hears them: the same turns, up to max_turn_s of each"
            pair = [] if kind else pair
            lengths = [sum(len(message.input_ids) for message in side) for side in pair]
            cut = sum(len(read[index].heard.cut_turns) for index in both if index in read)
            keys = [[(m.input_ids.tolist(), [clip.hex() for clip in m.clips]) for m in side] for side in pair]
            described = {"row": row, "pair_id": self._pair_ids[row], "length": sum(lengths), "num_cut": cut}
            # What the model reads of a pair: tokens and clips, the chosen side first.
            described |= {"longest": max(lengths, default=0), "content": hash_json(keys), "kind": kind}
            for name, value in {**described, "reason": reason}.items():
                columns[name].append(value)
            sides.append(pair)
        return _Batch(columns, sides, self._prepare.join(read).mels if self._with_mels else {})


@torch.inference_mode()
def _encode(batch: _Batch, model: SDiaRewardModel) -> dict[str, list[Any]]:
    # None of these pairs may be usable.
    encoded = encode_clips(model, list(batch.mels.values())) if batch.mels else []
    # The bytes of each clip's vectors, of shape `(num_audio_tokens, d_model)`.
    stored = (vectors.to(torch.float16).cpu().numpy().tobytes() for vectors in encoded)
    clip_vectors = dict(zip(batch.mels, stored, strict=True))
    columns: dict[str, list[Any]] = {name: [] for name in _ENCODING}
    for pair in batch.sides:
        clips = [[digest for message in side for digest in message.clips] for side in pair]
        distinct = list(dict.fromkeys(digest for side in clips for digest in side))
        for index, name in enumerate(SIDES):
            ids = [message.input_ids for message in pair[index]] if pair else []
            columns[f"{name}_ids"].append([int(token) for part in ids for token in part])
            columns[f"{name}_clips"].append([distinct.index(digest) for digest in clips[index]] if pair else [])
        columns["clip_digests"].append(distinct)
        columns["clip_vectors"].append([clip_vectors[digest] for digest in distinct])
        columns["width"].append(model.model.audio_tower.proj.in_features)
    return columns
