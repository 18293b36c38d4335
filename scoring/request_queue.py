"""Queue the requests of several callers for one model; requests that wait at the same time are scored together.

TRL calls reward functions that are coroutines from several threads; one batch of all of them is faster than several
at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sdiareward.audio_sdiareward import Heard


if TYPE_CHECKING:
    import torch

    from sdiareward.modeling_sdiareward import SDiaRewardModel

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
    def __init__(self) -> None:
        self._pending: list[Request] = []
        self._pending_lock = threading.Lock()
        self._scoring_lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sdiareward-reward")

    def score(self, request: Request) -> list[Outcome]:
        self._add(request)
        self._run()
        return request.result.result()

    async def score_async(self, request: Request) -> list[Outcome]:
        self._add(request)
        self._thread.submit(self._run)
        return await asyncio.wrap_future(request.result)

    def _add(self, request: Request) -> None:
        with self._pending_lock:
            self._pending.append(request)

    def _run(self) -> None:
        """Score all pending requests; on return, every request that was added before is finished."""
        with self._scoring_lock:
            while waiting := self._take():
                # A cancelled request has no waiting caller.
                requests = [request for request in waiting if request.result.set_running_or_notify_cancel()]
                _settle(requests)

    def _take(self) -> list[Request]:
        """Remove and return the pending requests for the scorer of the first one."""
        with self._pending_lock:
            taken = [request for request in self._pending if request.scorer is self._pending[0].scorer]
            self._pending = [request for request in self._pending if request.scorer is not taken[0].scorer]
        return taken


def _settle(requests: Sequence[Request]) -> None:
    """Score requests together; if that fails, each by itself, so that one costs no other its result."""
    try:
        results = score_together(requests)
    except BaseException as error:
        if isinstance(error, Exception) and len(requests) > 1:
            _settle(requests[:1])
            _settle(requests[1:])
            return
        for request in requests:
            request.result.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        for request, result in zip(requests, results, strict=True):
            request.result.set_result(result)


# By model, not by scorer: two scorers of one model must not run it at once.
_queues: WeakKeyDictionary[Any, ScoringQueue] = WeakKeyDictionary()
_queues_lock = threading.Lock()


def get_queue(model: SDiaRewardModel) -> ScoringQueue:
    with _queues_lock:
        return _queues.setdefault(model, ScoringQueue())


def score_together(requests: Sequence[Request]) -> list[list[Outcome]]:
    dialogues = [dialogue for request in requests for dialogue in request.dialogues]
    if not dialogues:
        return [[] for _ in requests]
    criteria = [request.criterion for request in requests for _ in request.dialogues]
    groups = [group for request in requests for group in request.groups]
    outcomes: dict[int, Any] = {}  # Begins with the reasons.
    heard: dict[int, Heard] = {}
    scorer = requests[0].scorer
    with _use_device(scorer.model.device):
        for index, reward in scorer.iter_scores(dialogues, criteria, groups=groups, skipped=outcomes, heard=heard):
            outcomes[index] = reward, heard[index]
    results = iter([outcomes[index] for index in range(len(dialogues))])
    return [[next(results) for _ in request.dialogues] for request in requests]


def _use_device(device: torch.device) -> Any:
    """Make the model's GPU the current one: a new thread starts on the first GPU."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
