"""A replica of the model under Ray Serve, which forms batches (`serve.batch`) and replaces dead replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray import serve

from sdiareward.audio_sdiareward import Heard


if TYPE_CHECKING:
    from sdiareward.scoring.model_spec import ModelSpec

logger = logging.getLogger("ray.serve")

# As `scoring.request_queue` has it, without torch.
Outcome = tuple[float, Heard] | str


@dataclass(frozen=True)
class ModelFacts:
    """Facts for the server process, which does not load the model."""

    criteria: tuple[str, ...]
    max_turn_s: float  # What the model hears of a turn.
    calibration: dict[str, Any] | None  # If one fits the prompts; else `no_calibration` is the reason.
    no_calibration: str


@dataclass(frozen=True)
class ScoreJob:
    dialogues: list[Any]
    criterion: str


@dataclass(frozen=True)
class ScoreResult:
    outcomes: list[Outcome]
    num_requests: int  # That were scored together.
    audio_s: float  # Of all requests that were scored together, divided by their number.


class ScoringFailedError(RuntimeError):
    """Raised for a request on which the model failed; the reason is in the log of the replica."""


class Replica:
    def __init__(self, spec: ModelSpec, device: str | None = None, num_threads: int | None = None):
        import torch

        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._scorer = spec.load(device=device)
        # One thread for all batches: each computing thread has its own pool of PyTorch threads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sdiareward-replica")
        self._is_free = asyncio.Event()
        self._is_free.set()

    def reconfigure(self, batching: dict[str, Any]) -> None:
        """Set how batches are formed; Ray Serve calls this before the first request."""
        batched: Any = self._score_batch
        batched.set_max_batch_size(batching["max_batch_size"])
        batched.set_batch_wait_timeout_s(batching["batch_wait_s"])

    def check_health(self) -> None:
        """Raise if the accelerator has failed; Ray Serve then replaces this replica."""
        import torch

        device = self._scorer.model.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def read_facts(self) -> ModelFacts:
        from sdiareward.scoring.calibration import Calibration

        config, processor = self._scorer.model.config, self._scorer.processor
        calibration, reason = None, ""
        try:
            calibration = dict(Calibration.of(config).parameters)
        except ValueError as error:
            reason = str(error)
        return ModelFacts(tuple(sorted(processor.prompts)), processor.max_turn_s, calibration, reason)

    async def score(self, job: ScoreJob) -> ScoreResult:
        """Score one request, together with others that wait when the model becomes free."""
        # `serve.batch` closes a batch after its time even if the model is busy, and would queue batches of one.
        # Requests that arrive while the model computes wait here instead, and form one batch.
        await self._is_free.wait()
        result = await self._score_batch(job)
        if result is None:
            raise ScoringFailedError("the model failed on this request.")
        return result

    @serve.batch
    async def _score_batch(self, jobs: list[ScoreJob]) -> list[ScoreResult | None]:
        self._is_free.clear()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._score, jobs)
        finally:
            self._is_free.set()

    def _score(self, jobs: Sequence[ScoreJob]) -> list[ScoreResult | None]:
        """Return the result of each request; None where the model failed on it."""
        before_s = self._scorer.audio_s
        try:
            outcomes = self._score_together(jobs)
        except Exception:  # One request must not fail the others.
            logger.exception("%d requests cannot be scored together; each is tried alone.", len(jobs))
            return [None] if len(jobs) == 1 else [self._score([job])[0] for job in jobs]
        audio_s = self._scorer.audio_s - before_s
        return [ScoreResult(each, len(jobs), audio_s / len(jobs)) for each in outcomes]

    def _score_together(self, jobs: Sequence[ScoreJob]) -> list[list[Outcome]]:
        from sdiareward.scoring.request_queue import Request, score_together
        from sdiareward.scoring.rollouts import Rollout

        # The shared context of several answers is computed once, as in GRPO and best-of-N.
        requests = []
        for k, job in enumerate(jobs):
            groups = [(k, Rollout(dialogue).group) for dialogue in job.dialogues]
            requests.append(Request(self._scorer, job.criterion, job.dialogues, groups))
        return score_together(requests)


deployment: Any = serve.deployment(Replica)
