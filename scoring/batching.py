"""Plan which dialogues are computed together and which prefixes they share, without torch.

Dialogues are split into batches by a budget of tokens, longest first. Within a batch, dialogues that begin with the
same messages (the system prompt; the context of a best-of-N or an RL group) form a tree: each shared prefix is one
segment, computed once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


# A padded batch is closed when padding would exceed this share of it.
_MAX_PADDING_WASTE = 0.05
# A batch must fill an accelerator, or fit into the caches of a CPU.
_BATCH_TOKENS = {"cpu": 4096}
_BATCH_TOKENS_ACCELERATOR = 16_384


def default_batch_tokens(device_type: str) -> int:
    """Return the number of tokens in one forward pass on a kind of device, such as `"cpu"` or `"cuda"`."""
    return _BATCH_TOKENS.get(device_type, _BATCH_TOKENS_ACCELERATOR)


@dataclass(frozen=True)
class Message:
    """Hold one message of a dialogue as it enters the model.

    Args:
        input_ids (`np.ndarray` of shape `(num_tokens,)`): int64, audio placeholders included.
        clips (`tuple[bytes, ...]`): Digest of each of its clips.
    """

    input_ids: np.ndarray
    clips: tuple[bytes, ...] = ()

    @property
    def key(self) -> Hashable:
        """Equal for messages that are computed alike."""
        return self.input_ids.tobytes(), self.clips


@dataclass
class Segment:
    """Hold consecutive messages that some dialogues of a batch share.

    Args:
        parent (`int`, *optional*): Index of the preceding segment; None at the beginning of a dialogue.
        messages (`list[Message]`): Its messages; never empty.
    """

    parent: int | None
    messages: list[Message] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Length in tokens."""
        return sum(len(message.input_ids) for message in self.messages)


def clip_digest(clip: np.ndarray) -> bytes:
    """Return a hash of a clip's samples; equal clips are encoded once.

    Args:
        clip (`np.ndarray` of shape `(num_samples,)`): float32 samples at the model's rate.
    """
    return hashlib.blake2b(clip.tobytes(), digest_size=16).digest()


def split_messages(
    input_ids: np.ndarray, clips: Sequence[bytes], start_token_id: int, audio_start_token_id: int
) -> list[Message]:
    """Split a dialogue's tokens into its messages, each with the digests of its clips.

    Args:
        input_ids (`np.ndarray` of shape `(num_tokens,)`): The whole dialogue.
        clips (`list[bytes]`): Digest of each clip, in order.
        start_token_id (`int`): First token of a message; text cannot contain it.
        audio_start_token_id (`int`): Token before the placeholders of a clip.
    """
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
    """Arrange dialogues as a forest of segments, one tree for each first message.

    Args:
        dialogues (`list[list[Message]]`): Messages of each dialogue.
        share_prefixes (`bool`, *optional*, defaults to `True`): Without it each dialogue is one segment.

    Returns:
        `tuple[list[Segment], list[int]]`: The segments, each after its parent, and for each dialogue the index of its
        last segment.
    """
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
    """Return the members by their message at `depth`."""
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


def complete_groups(results: Iterable[tuple[int, float]], size: int) -> Iterator[tuple[int, list[float]]]:
    """Collect results of single dialogues into groups, such as the two sides of a pair; yield complete groups.

    Args:
        results (`Iterable[tuple[int, float]]`): Index and value; index `i` is number `i % size` of group `i // size`.
        size (`int`): Members of a group. An incomplete group is not yielded.
    """
    waiting: dict[int, dict[int, float]] = {}
    for index, value in results:
        group, member = divmod(index, size)
        values = waiting.setdefault(group, {})
        values[member] = value
        if len(values) == size:
            del waiting[group]
            yield group, [values[member] for member in range(size)]


def plan_batches(
    lengths_tokens: Mapping[int, int] | Sequence[int],
    groups: Sequence[Sequence[int]],
    batch_tokens: int,
    padded: bool = False,
) -> Iterator[list[int]]:
    """Yield the dialogues of each batch, longest first.

    Args:
        lengths_tokens (`dict[int, int]` or `list[int]`): Length of each dialogue.
        groups (`list[list[int]]`): Dialogues that must be in one batch.
        batch_tokens (`int`): Tokens in a batch, padding included; a longer group is a batch by itself.
        padded (`bool`, *optional*, defaults to `False`): Shorter dialogues are padded to the longest of their batch.
            A batch then also ends where padding would exceed five percent of it.
    """
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
