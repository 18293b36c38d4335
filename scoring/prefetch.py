"""Prefetch dialogues for the model: decoding, tokens, hashes and mel features of the next batches, in threads.

libsndfile, soxr, the tokenizer and the mel transform release Python's lock, so threads suffice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sdiareward.processing_sdiareward import AUDIO_BOS_TOKEN, SDiaRewardProcessor

from .batching import Message, clip_digest, split_messages


# Errors of a dialogue that cannot be used; any other exception is a bug.
DIALOGUE_ERRORS = (ValueError, TypeError, KeyError, OSError)
# Mel features are computed together for this many clips of similar length.
_CLIPS_AT_A_TIME = 8


@dataclass
class PreparedBatch:
    """Hold some dialogues ready for the model.

    Args:
        indices (`list[int]`): Their indices; those that failed are missing.
        dialogues (`list[list[Message]]`): Their messages.
        clips (`dict[bytes, np.ndarray]`): Samples of each distinct clip, by its digest.
        mels (`dict[bytes, torch.Tensor]`): Log-mel features of clips, shape `(num_mel_bins, num_frames)`.
        failures (`dict[int, Exception]`): The error of each missing dialogue.
        num_samples (`int`): Samples of all their clips, repeated clips included.
    """

    indices: list[int] = field(default_factory=list)
    dialogues: list[list[Message]] = field(default_factory=list)
    clips: dict[bytes, np.ndarray] = field(default_factory=dict)
    mels: dict[bytes, torch.Tensor] = field(default_factory=dict)
    failures: dict[int, Exception] = field(default_factory=dict)
    num_samples: int = 0


class DialoguePreparer:
    """Prepare batches of dialogues.

    Args:
        processor ([`SDiaRewardProcessor`]): Turns each dialogue into tokens and clips.
        encoded (`Container[bytes]`): Digests of clips that need no mel features.
        with_mels (`bool`, *optional*, defaults to `True`): Compute mel features.
    """

    def __init__(self, processor: SDiaRewardProcessor, encoded: Container[bytes] = (), *, with_mels: bool = True):
        self.processor = processor
        self.encoded = encoded
        self.with_mels = with_mels
        to_id = processor.tokenizer.convert_tokens_to_ids
        self._start_id = to_id("<|im_start|>")
        self._audio_start_id = to_id(AUDIO_BOS_TOKEN)

    def __call__(self, indices: Sequence[int], dialogues: Sequence[Any], criteria: Sequence[str]) -> PreparedBatch:
        """Prepare the dialogues at `indices`; one that cannot be used goes to `failures`."""
        batch = PreparedBatch()
        for index in indices:
            try:
                prepared = self.processor.prepare(dialogues[index], criteria[index])
            except DIALOGUE_ERRORS as error:
                batch.failures[index] = error
            else:
                batch.indices.append(index)
                digests = [clip_digest(clip) for clip in prepared.clips]
                batch.clips.update(zip(digests, prepared.clips, strict=True))
                batch.dialogues.append(self.messages(prepared.input_ids, digests))
                batch.num_samples += sum(clip.size for clip in prepared.clips)
        if self.with_mels:
            batch.mels = self.mels({key: clip for key, clip in batch.clips.items() if key not in self.encoded})
        return batch

    def messages(self, input_ids: np.ndarray, digests: Sequence[bytes]) -> list[Message]:
        """Split the tokens of a dialogue into its messages; `digests` are those of its clips, in order."""
        return split_messages(input_ids, digests, self._start_id, self._audio_start_id)

    def mels(self, clips: dict[bytes, np.ndarray]) -> dict[bytes, torch.Tensor]:
        """Return the log-mel features of clips, each at its true length."""
        order = sorted(clips, key=lambda digest: clips[digest].size)
        features = {}
        for first in range(0, len(order), _CLIPS_AT_A_TIME):
            digests = order[first : first + _CLIPS_AT_A_TIME]
            mels, mask = self.processor.log_mel([clips[digest] for digest in digests])
            for digest, mel, num_frames in zip(digests, mels, mask.sum(axis=1), strict=True):
                features[digest] = torch.from_numpy(mel[:, :num_frames])
        return features


def reason_of(error: Exception) -> str:
    """Return why a dialogue cannot be used, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def prefetch(task: Callable[[Any], Any], items: Iterable[Any], num_workers: int) -> Iterator[Any]:
    """Yield `task(item)` for each item in order, while threads work on the next items.

    Args:
        task (`Callable`): Applied to each item.
        items (`Iterable`): Read as needed, a few in advance.
        num_workers (`int`): Threads; 0 works in the caller's thread.
    """
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
