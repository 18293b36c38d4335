"""Queue the requests of several callers for one model; requests that wait at the same time are scored together.

TRL calls reward functions that are coroutines from several threads; one batch of all of them is faster than several
at a time.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sdiareward.audio_sdiareward import Heard


if TYPE_CHECKING:
    from .scorer import Scorer


# The reward of a dialogue and what the model heard of it, or the reason why it has no reward.
Outcome = tuple[float, Heard] | str


@dataclass
class Request:
    scorer: Scorer
    criterion: str
    dialogues: list[Any]
    groups: Sequence[Hashable]  # Dialogues of one group are computed together.
    result: Future[list[Outcome]] = field(default_factory=Future)


class ScoringQueue:
    """The requests for one model, and the thread that scores them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._waiting: deque[Request] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sdiareward-reward")

    def submit(self, request: Request) -> Future[list[Outcome]]:
        """Return the outcomes of a request, which are computed in the queue's thread."""
        self._waiting.append(request)
        self._thread.submit(self._run)
        return request.result

    def _run(self) -> None:
        """Score the waiting requests, one scorer at a time."""
        by_scorer: dict[int, list[Request]] = {}
        while self._waiting:
            request = self._waiting.popleft()
            # A cancelled request has no waiting caller.
            if request.result.set_running_or_notify_cancel():
                by_scorer.setdefault(id(request.scorer), []).append(request)
        for requests in by_scorer.values():
            _settle(requests)


# By model, not by scorer: two scorers of one model must not run it at once.
_queues: WeakKeyDictionary[Any, ScoringQueue] = WeakKeyDictionary()
_queues_lock = threading.Lock()


def submit(request: Request) -> Future[list[Outcome]]:
    """Let a request be scored, together with others that wait for its model."""
    with _queues_lock:
        queue = _queues.get(request.scorer.model)
        # A fork has the queue, but not its thread.
        if queue is None or queue.pid != os.getpid():
            queue = _queues[request.scorer.model] = ScoringQueue()
    return queue.submit(request)


def _settle(requests: Sequence[Request]) -> None:
    """Score requests together; if that fails, each by itself, so that one costs no other its result."""
    try:
        results = score_together(requests)
    except Exception as error:
        if len(requests) == 1:
            requests[0].result.set_exception(error)
        else:
            for request in requests:
                _settle([request])
    else:
        for request, result in zip(requests, results, strict=True):
            request.result.set_result(result)


def score_together(requests: Sequence[Request]) -> list[list[Outcome]]:
    import torch

    dialogues = [dialogue for request in requests for dialogue in request.dialogues]
    criteria = [request.criterion for request in requests for _ in request.dialogues]
    groups = [group for request in requests for group in request.groups]
    outcomes: dict[int, Any] = {}  # Begins with the reasons.
    heard: dict[int, Heard] = {}
    scorer = requests[0].scorer
    # A new thread starts on the first GPU.
    with torch.cuda.device(scorer.model.device) if scorer.model.device.type == "cuda" else nullcontext():
        for index, reward in scorer.iter_scores(dialogues, criteria, groups=groups, skipped=outcomes, heard=heard):
            outcomes[index] = reward, heard[index]
    results = iter([outcomes[index] for index in range(len(dialogues))])
    return [[next(results) for _ in request.dialogues] for request in requests]
