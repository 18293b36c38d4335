"""A copy of the model in a process of Ray Serve: requests that wait together are scored together.

Ray Serve forms the batches (`serve.batch`), chooses the copy, counts who waits and replaces a copy that died. A reward
does not depend on what it is computed with, so that a request may be sent to another copy again at any time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray import serve


if TYPE_CHECKING:
    from sdiareward.scoring.model_spec import ModelSpec

logger = logging.getLogger("ray.serve")

# A dialogue's reward, or why it has none.
Outcome = float | str


@dataclass(frozen=True)
class ModelFacts:
    """Hold what the server has to know of the model without loading it.

    Args:
        criteria (`tuple[str, ...]`): What can be judged.
        max_turn_s (`float`): Seconds of a turn that the model hears.
        calibration (`dict`, *optional*): Its calibration, if it has one that fits its prompts.
        no_calibration (`str`): Why there is none.
    """

    criteria: tuple[str, ...]
    max_turn_s: float
    calibration: dict[str, Any] | None
    no_calibration: str


@dataclass(frozen=True)
class ScoreJob:
    """Hold what one request wants scored.

    Args:
        dialogues (`list[list[dict]]`): Messages of each.
        criterion (`str`): What is judged.
    """

    dialogues: list[Any]
    criterion: str


@dataclass(frozen=True)
class ScoreResult:
    """Hold what became of a request.

    Args:
        outcomes (`list[float | str]`): Of each dialogue.
        num_requests (`int`): How many requests were scored together.
        audio_s (`float`): Seconds of audio that they were.
    """

    outcomes: list[Outcome]
    num_requests: int
    audio_s: float


class ScoringFailedError(RuntimeError):
    """Raised for a request on which the model itself failed; the reason is in the copy's log."""


class Replica:
    """Hold a model and score requests.

    Args:
        choice ([`ModelSpec`]): Which model.
        device (`str`, *optional*): Where to compute if the choice does not say.
        num_threads (`int`, *optional*): Threads of PyTorch on a CPU.
    """

    def __init__(self, choice: ModelSpec, device: str | None = None, num_threads: int | None = None):
        import torch

        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._scorer = choice.load(device=device)
        # One thread for all batches: each thread that computes has a pool of PyTorch's threads of its own.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sdiareward-replica")
        self._is_free = asyncio.Event()
        self._is_free.set()

    def reconfigure(self, batching: dict[str, Any]) -> None:
        """Take over how batches are formed; Ray Serve calls this before the first request."""
        batched: Any = self._score_batch
        batched.set_max_batch_size(batching["max_batch_size"])
        batched.set_batch_wait_timeout_s(batching["batch_wait_s"])

    def check_health(self) -> None:
        """Raise if the accelerator has failed; Ray Serve then replaces this copy."""
        import torch

        device = self._scorer.model.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def describe(self) -> ModelFacts:
        """Return what the server has to know of the model."""
        from sdiareward.scoring.calibration import Calibration

        config, processor = self._scorer.model.config, self._scorer.processor
        calibration, reason = None, ""
        try:
            calibration = dict(Calibration.of(config).parameters)
        except ValueError as error:
            reason = str(error)
        return ModelFacts(tuple(sorted(processor.prompts)), processor.max_turn_s, calibration, reason)

    async def score(self, work: ScoreJob) -> ScoreResult:
        """Score one request, together with those that wait when the model is free.

        Raises:
            ScoringFailedError: The model itself failed.
        """
        # `serve.batch` closes a batch after its time even if the one before is still computed, and would queue up
        # batches of one. What comes while the model computes waits here instead, and goes into one batch.
        await self._is_free.wait()
        done = await self._score_batch(work)
        if done is None:
            raise ScoringFailedError("the model failed on this request.")
        return done

    @serve.batch
    async def _score_batch(self, works: list[ScoreJob]) -> list[ScoreResult | None]:
        self._is_free.clear()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._score, works)
        finally:
            self._is_free.set()

    def _score(self, works: Sequence[ScoreJob]) -> list[ScoreResult | None]:
        """Return what became of each request; None where the model failed on it."""
        before_s = self._scorer.audio_s
        try:
            outcomes = self._score_together(works)
        except Exception:  # A request must not take the others down with it, whatever it does to the model.
            logger.exception("%d requests cannot be scored; several are tried one by one.", len(works))
            return [None] if len(works) == 1 else [self._score([work])[0] for work in works]
        audio_s = self._scorer.audio_s - before_s
        return [ScoreResult(each, len(works), audio_s / len(works)) for each in outcomes]

    def _score_together(self, works: Sequence[ScoreJob]) -> list[list[Outcome]]:
        """Return the outcome of each dialogue of each request."""
        from sdiareward.scoring.request_queue import Request, score_together
        from sdiareward.scoring.rollouts import Rollout

        # Answers to one context are computed with it once, as in GRPO and best-of-N.
        requests = []
        for k, work in enumerate(works):
            groups = [(k, Rollout(dialogue).group) for dialogue in work.dialogues]
            requests.append(Request(self._scorer, work.criterion, work.dialogues, groups))
        return [[_checked(outcome) for outcome in outcomes] for outcomes in score_together(requests)]


def _checked(outcome: Outcome) -> Outcome:
    is_good = isinstance(outcome, str) or math.isfinite(outcome)
    return outcome if is_good else f"the model's reward is {outcome}."


deployment: Any = serve.deployment(Replica)
