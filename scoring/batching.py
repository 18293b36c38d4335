"""Make batches of dialogues: prepare them in threads, plan which are computed together and which prefixes they share.

Dialogues are split into batches by a budget of tokens, longest first. Within a batch, dialogues that begin with the
same messages (the system prompt; the context of a best-of-N or an RL group) form a tree: each shared prefix is one
segment, computed once. Threads prepare the next batches: libsndfile, soxr, the tokenizer and the mel transform
release Python's lock.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdiareward.audio_sdiareward import Heard
from sdiareward.chat_sdiareward import AUDIO_BOS_TOKEN
from sdiareward.pairs.messages import read_dialogue
from sdiareward.processing_sdiareward import SDiaRewardProcessor


# Errors of a dialogue that cannot be used; any other exception is a bug.
DIALOGUE_ERRORS = (ValueError, TypeError, KeyError, OSError)
# Mel features are computed together for this many clips of similar length.
_CLIPS_AT_A_TIME = 8
# A padded batch is closed when padding would exceed this share of it.
_MAX_PADDING_WASTE = 0.05


def choose_batch_tokens(device_type: str) -> int:
    # A batch must fit into the caches of a CPU, or fill an accelerator.
    return 4096 if device_type == "cpu" else 16_384


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
    messages: list[Message]


def count_tokens(messages: Iterable[Message]) -> int:
    return sum(len(message.input_ids) for message in messages)


def build_prefix_tree(
    dialogues: Sequence[Sequence[Message]], share_prefixes: bool = True
) -> tuple[list[Segment], list[int]]:
    """Return segments, each after its parent, and for each dialogue the index of its last segment."""
    if not share_prefixes:
        return [Segment(None, list(messages)) for messages in dialogues], list(range(len(dialogues)))
    keys = [[message.key for message in messages] for messages in dialogues]
    segments: list[Segment] = []
    last = [0] * len(dialogues)
    pending: list[tuple[list[int], int, int | None]] = [(list(range(len(dialogues))), 0, None)]
    while pending:
        members, depth, parent = pending.pop()
        groups: dict[Hashable, list[int]] = {}
        for member in members:
            groups.setdefault(keys[member][depth], []).append(member)
        for group in groups.values():
            columns = zip(*(keys[member] for member in group), strict=False)
            stop = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
            segments.append(Segment(parent, list(dialogues[group[0]][depth:stop])))
            for member in group:
                last[member] = len(segments) - 1
            if longer := [member for member in group if len(keys[member]) > stop]:
                pending.append((longer, stop, len(segments) - 1))
    return segments, last


def plan_batches(
    lengths_tokens: Mapping[int, int], groups: Sequence[Sequence[int]], batch_tokens: int, padded: bool = False
) -> Iterator[list[int]]:
    """Yield the dialogues of each batch, longest first; a group that exceeds `batch_tokens` is a batch by itself."""
    batch: list[int] = []
    for group in sorted(groups, key=lambda group: -max(lengths_tokens[index] for index in group)):
        lengths = [lengths_tokens[index] for index in (*batch, *group)]
        size = max(lengths) * len(lengths) if padded else sum(lengths)
        wasted = padded and sum(lengths) < (1 - _MAX_PADDING_WASTE) * size
        if batch and (size > batch_tokens or wasted):
            yield batch
            batch = []
        batch = [*batch, *group]
    if batch:
        yield batch


@dataclass(frozen=True)
class ReadDialogue:
    """A dialogue whose recordings are decoded."""

    messages: list[Message]
    clips: dict[bytes, np.ndarray]
    heard: Heard


Read = tuple[dict[int, ReadDialogue], dict[int, Exception]]


@dataclass(frozen=True)
class PreparedBatch:
    read: Mapping[int, ReadDialogue]
    clips: dict[bytes, np.ndarray]
    mels: dict[bytes, Tensor]  # Shape `(num_mel_bins, num_frames)`.

    @property
    def dialogues(self) -> list[list[Message]]:
        return [each.messages for each in self.read.values()]


class DialoguePreparer:
    """Read dialogues and prepare batches of them; clips with a digest in `encoded` get no mel features."""

    def __init__(self, processor: SDiaRewardProcessor, encoded: Container[bytes] = ()):
        self.processor = processor
        self.encoded = encoded
        to_id = processor.tokenizer.convert_tokens_to_ids
        self._start_id, self._audio_start_id = to_id("<|im_start|>"), to_id(AUDIO_BOS_TOKEN)

    def read(self, dialogue: Any, criterion: str) -> ReadDialogue:
        """Decode the recordings of a dialogue, once, and tokenize it."""
        prepared = self.processor.prepare(dialogue, criterion)
        digests = [hashlib.blake2b(clip.tobytes(), digest_size=16).digest() for clip in prepared.clips]
        messages = self.split_messages(prepared.input_ids, digests)
        return ReadDialogue(messages, dict(zip(digests, prepared.clips, strict=True)), prepared.heard)

    def read_each(
        self, indices: Iterable[int], dialogues: Sequence[Any], criteria: Sequence[str], is_whole: bool = False
    ) -> Read:
        """Return the dialogues at `indices`, and the errors of those that cannot be used."""
        read: dict[int, ReadDialogue] = {}
        failures: dict[int, Exception] = {}
        for index in indices:
            try:
                read[index] = self.read(read_dialogue(dialogues[index], is_whole=is_whole), criteria[index])
            except DIALOGUE_ERRORS as error:
                failures[index] = error
        return read, failures

    def join(self, read: Mapping[int, ReadDialogue]) -> PreparedBatch:
        """Make a batch of dialogues that were read."""
        clips = {key: clip for each in read.values() for key, clip in each.clips.items()}
        mels = self.compute_mels({key: clip for key, clip in clips.items() if key not in self.encoded})
        return PreparedBatch(read, clips, mels)

    def split_messages(self, input_ids: np.ndarray, digests: Sequence[bytes]) -> list[Message]:
        """Split a dialogue's tokens into its messages, each with the digests of its clips."""
        following = iter(digests)
        messages = np.split(input_ids, np.flatnonzero(input_ids == self._start_id)[1:])
        num_clips = [int((ids == self._audio_start_id).sum()) for ids in messages]
        return [Message(ids, tuple(islice(following, num))) for ids, num in zip(messages, num_clips, strict=True)]

    def compute_mels(self, clips: Mapping[bytes, np.ndarray]) -> dict[bytes, Tensor]:
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


def note_skipped(index: int, error: Exception, skipped: MutableMapping[int, str] | None) -> None:
    """Note why a dialogue is skipped, or raise."""
    if skipped is None:
        raise error
    skipped[index] = format_reason(error)


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
