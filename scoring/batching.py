"""Make batches of dialogues: prepare them in threads, plan which are computed together and which prefixes they share.

Dialogues are split into batches by a budget of tokens, longest first. Within a batch, dialogues that begin with the
same messages (the system prompt; the context of a best-of-N or an RL group) form a tree: each shared prefix is one
segment, computed once. Threads prepare the next batches: libsndfile, soxr, the tokenizer and the mel transform
release Python's lock.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sdiareward.audio_sdiareward import Heard
from sdiareward.chat_sdiareward import AUDIO_BOS_TOKEN
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


# Errors of a dialogue that cannot be used; any other exception is a bug.
DIALOGUE_ERRORS = (ValueError, TypeError, KeyError, OSError)
# Mel features are computed together for this many clips of similar length.
_CLIPS_AT_A_TIME = 8
# A padded batch is closed when padding would exceed this share of it.
_MAX_PADDING_WASTE = 0.05
# A batch must fill an accelerator, or fit into the caches of a CPU.
_BATCH_TOKENS = {"cpu": 4096}
_BATCH_TOKENS_ACCELERATOR = 16_384


def choose_batch_tokens(device_type: str) -> int:
    return _BATCH_TOKENS.get(device_type, _BATCH_TOKENS_ACCELERATOR)


@dataclass(frozen=True)
class Message:
    input_ids: np.ndarray  # Audio placeholders included.
    clips: tuple[bytes, ...] = ()  # Digest of each clip.

    @property
    def key(self) -> Hashable:
        return self.input_ids.tobytes(), self.clips


@dataclass
class Segment:
    """Consecutive messages that some dialogues of a batch share; `parent` is the index of the preceding segment."""

    parent: int | None
    messages: list[Message] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(len(message.input_ids) for message in self.messages)


def digest_clip(clip: np.ndarray) -> bytes:
    return hashlib.blake2b(clip.tobytes(), digest_size=16).digest()


def split_messages(
    input_ids: np.ndarray, clips: Sequence[bytes], start_token_id: int, audio_start_token_id: int
) -> list[Message]:
    """Split a dialogue's tokens into its messages, each with the digests of its clips."""
    starts = [*np.flatnonzero(input_ids == start_token_id).tolist(), len(input_ids)]
    begins_clip = input_ids == audio_start_token_id
    messages, num_before = [], 0
    for start, stop in zip(starts, starts[1:], strict=False):
        num_clips = int(begins_clip[start:stop].sum())
        messages.append(Message(input_ids[start:stop], tuple(clips[num_before : num_before + num_clips])))
        num_before += num_clips
    return messages


def build_prefix_tree(
    dialogues: Sequence[Sequence[Message]], share_prefixes: bool = True
) -> tuple[list[Segment], list[int]]:
    """Return segments, each after its parent, and for each dialogue the index of its last segment."""
    if not share_prefixes:
        segments = [Segment(None, list(messages)) for messages in dialogues]
        return segments, list(range(len(dialogues)))
    segments, last = [], [0] * len(dialogues)
    pending: list[tuple[list[int], int, int | None]] = [(list(range(len(dialogues))), 0, None)]
    while pending:
        members, depth, parent = pending.pop()
        for group in _group_by_message(dialogues, members, depth):
            stop = _find_common_depth(dialogues, group, depth)
            segments.append(Segment(parent, list(dialogues[group[0]][depth:stop])))
            index = len(segments) - 1
            longer = [member for member in group if len(dialogues[member]) > stop]
            for member in set(group) - set(longer):
                last[member] = index
            if longer:
                pending.append((longer, stop, index))
    return segments, last


def _group_by_message(dialogues: Sequence[Sequence[Message]], members: list[int], depth: int) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for member in members:
        groups.setdefault(dialogues[member][depth].key, []).append(member)
    return list(groups.values())


def _find_common_depth(dialogues: Sequence[Sequence[Message]], group: list[int], depth: int) -> int:
    """Return the number of first messages that all members share; they share the one at `depth`."""
    if len(group) == 1:
        return len(dialogues[group[0]])
    shortest = min(len(dialogues[member]) for member in group)
    stop = depth + 1
    while stop < shortest and len({dialogues[member][stop].key for member in group}) == 1:
        stop += 1
    return stop


def list_members(groups: Sequence[Hashable] | None, num_dialogues: int) -> list[list[int]]:
    """Return the indices of each group, in the order of their first dialogues."""
    if groups is None:
        return [[index] for index in range(num_dialogues)]
    if len(groups) != num_dialogues:
        raise ValueError(f"got {len(groups)} groups for {num_dialogues} dialogues; give one for each.")
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return list(members.values())


def plan_batches(
    lengths_tokens: Mapping[int, int] | Sequence[int],
    groups: Sequence[Sequence[int]],
    batch_tokens: int,
    padded: bool = False,
) -> Iterator[list[int]]:
    """Yield the dialogues of each batch, longest first; a group that exceeds `batch_tokens` is a batch by itself."""
    order = sorted(groups, key=lambda group: -max(lengths_tokens[index] for index in group))
    batch: list[int] = []
    for group in order:
        both = batch + list(group)
        lengths = [lengths_tokens[index] for index in both]
        size = max(lengths) * len(lengths) if padded else sum(lengths)
        wasted = padded and sum(lengths) < (1 - _MAX_PADDING_WASTE) * size
        if batch and (size > batch_tokens or wasted):
            yield batch
            both = list(group)
        batch = both
    if batch:
        yield batch


@dataclass(frozen=True)
class ReadDialogue:
    """A dialogue whose recordings are decoded."""

    messages: list[Message]
    clips: dict[bytes, np.ndarray]
    heard: Heard

    @property
    def num_tokens(self) -> int:
        return sum(len(message.input_ids) for message in self.messages)

    @property
    def num_bytes(self) -> int:
        return sum(clip.nbytes for clip in self.clips.values())


@dataclass
class PreparedBatch:
    indices: list[int] = field(default_factory=list)
    dialogues: list[list[Message]] = field(default_factory=list)
    clips: dict[bytes, np.ndarray] = field(default_factory=dict)
    mels: dict[bytes, torch.Tensor] = field(default_factory=dict)  # Shape `(num_mel_bins, num_frames)`.
    failures: dict[int, Exception] = field(default_factory=dict)
    heard: dict[int, Heard] = field(default_factory=dict)


class DialoguePreparer:
    """Read dialogues and prepare batches of them; clips with a digest in `encoded` get no mel features."""

    def __init__(self, processor: SDiaRewardProcessor, encoded: Container[bytes] = (), *, with_mels: bool = True):
        self.processor = processor
        self.encoded = encoded
        self.with_mels = with_mels
        to_id = processor.tokenizer.convert_tokens_to_ids
        self._start_id = to_id("<|im_start|>")
        self._audio_start_id = to_id(AUDIO_BOS_TOKEN)

    def read(self, dialogue: Any, criterion: str) -> ReadDialogue:
        """Decode the recordings of a dialogue, once, and tokenize it."""
        prepared = self.processor.prepare(dialogue, criterion)
        digests = [digest_clip(clip) for clip in prepared.clips]
        messages = self.split_messages(prepared.input_ids, digests)
        return ReadDialogue(messages, dict(zip(digests, prepared.clips, strict=True)), prepared.heard)

    def join(self, read: Mapping[int, ReadDialogue]) -> PreparedBatch:
        """Make a batch of dialogues that were read."""
        batch = PreparedBatch(list(read), [each.messages for each in read.values()])
        for index, each in read.items():
            batch.clips |= each.clips
            batch.heard[index] = each.heard
        if self.with_mels:
            batch.mels = self.compute_mels({key: clip for key, clip in batch.clips.items() if key not in self.encoded})
        return batch

    def __call__(self, indices: Sequence[int], dialogues: Sequence[Any], criteria: Sequence[str]) -> PreparedBatch:
        """Prepare the dialogues at `indices`; one that cannot be used goes to `failures`."""
        read: dict[int, ReadDialogue] = {}
        failures: dict[int, Exception] = {}
        for index in indices:
            try:
                read[index] = self.read(dialogues[index], criteria[index])
            except DIALOGUE_ERRORS as error:
                failures[index] = error
        batch = self.join(read)
        batch.failures = failures
        return batch

    def split_messages(self, input_ids: np.ndarray, digests: Sequence[bytes]) -> list[Message]:
        return split_messages(input_ids, digests, self._start_id, self._audio_start_id)

    def compute_mels(self, clips: dict[bytes, np.ndarray]) -> dict[bytes, torch.Tensor]:
        """Return the log-mel features of clips, each at its true length."""
        order = sorted(clips, key=lambda digest: clips[digest].size)
        features = {}
        for first in range(0, len(order), _CLIPS_AT_A_TIME):
            digests = order[first : first + _CLIPS_AT_A_TIME]
            mels, mask = self.processor.log_mel([clips[digest] for digest in digests])
            for digest, mel, num_frames in zip(digests, mels, mask.sum(axis=1), strict=True):
                features[digest] = torch.from_numpy(mel[:, :num_frames])
        return features


def format_reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def prefetch(task: Callable[[Any], Any], items: Iterable[Any], num_workers: int) -> Iterator[Any]:
    """Yield `task(item)` for each item in order, while threads work on the next items."""
    if not num_workers:
        yield from map(task, items)
        return
    pending: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(num_workers, thread_name_prefix="sdiareward")
    try:
        for item in items:
            pending.append(pool.submit(task, item))
            if len(pending) > num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def read_ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield items while a thread makes the next one; None is no item."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="sdiareward")
    try:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_agreement(model: SDiaRewardModel, processor: SDiaRewardProcessor) -> None:
    """Check that the configuration and the processor would compute the same rewards."""
    for name in ("prompts", "prompt_version", "max_turn_s", "sampling_rate", "stack_factor"):
        of_model, of_processor = getattr(model.config, name), getattr(processor, name)
        if of_model != of_processor:
            raise ValueError(
                f"{name} is {of_model!r} in the model's configuration but {of_processor!r} in the processor; they "
                "must be equal: load both from one checkpoint, or build the processor with the configuration's values."
            )
