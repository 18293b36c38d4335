"""Answer a request: score its valid dialogues, and report the problems of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sdiareward.chat_sdiareward import DialogueError
from sdiareward.scoring.calibration import Calibration, sigmoid

from .bodies import BadRequestError
from .forms import CompareRequest, CompareResponse, Dialogue, Options, Problem, Result, ScoreRequest, ScoreResponse
from .inputs import Messages, find_turn, make_problem, read_dialogue_form
from .replica import Outcome, ScoreJob
from .settings import ServiceSettings


if TYPE_CHECKING:
    from .cluster import ModelCluster
    from .metrics import Metrics

# Where a dialogue is in the request.
Place = Sequence[str | int]


class RequestScorer:
    def __init__(self, cluster: ModelCluster, settings: ServiceSettings, metrics: Metrics):
        self._cluster = cluster
        self._limits = settings.limits
        self._metrics = metrics
        parameters = cluster.facts.calibration
        self._calibration = Calibration(parameters) if parameters else None

    async def score(self, form: ScoreRequest, files: Mapping[str, bytes]) -> ScoreResponse:
        if len(form.dialogues) > self._limits.max_dialogues:
            reason = f"has {len(form.dialogues)} dialogues; send at most {self._limits.max_dialogues} at once."
            raise BadRequestError([Problem(loc=["body", "dialogues"], msg=reason, type="too_many")])
        places = [("dialogues", index) for index in range(len(form.dialogues))]
        results = await self._score_dialogues(form, form.dialogues, places, files)
        if not form.skip_bad:
            _require_rewards(results)
        return ScoreResponse(criterion=form.criterion, results=results)

    async def compare(self, form: CompareRequest, files: Mapping[str, bytes]) -> CompareResponse:
        a, b = await self._score_dialogues(form, [form.a, form.b], [("a",), ("b",)], files)
        _require_rewards([a, b])
        assert a.reward is not None and b.reward is not None
        margin = a.reward - b.reward
        if form.subset is None or self._calibration is None:
            probability = sigmoid(margin)
        else:
            probability = self._calibration.compute_probability(margin, form.subset)
        return CompareResponse(criterion=form.criterion, a=a, b=b, margin=margin, probability=probability)

    async def _score_dialogues(
        self, options: Options, dialogues: Sequence[Dialogue], places: Sequence[Place], files: Mapping[str, bytes]
    ) -> list[Result]:
        self._check_options(options)
        read = await asyncio.to_thread(self._read_dialogues, dialogues, files, options.require_audio)
        valid = [each for each in read if not isinstance(each, DialogueError)]
        outcomes = iter(await self._compute_outcomes(ScoreJob(valid, options.criterion)))
        results = []
        for number, (each, place) in enumerate(zip(read, places, strict=True), start=1):
            outcome = each if isinstance(each, DialogueError) else next(outcomes)
            results.append(self._make_result(outcome, options, place, number))
        num_refused = sum(result.error is not None for result in results)
        self._metrics.dialogues.labels("refused").inc(num_refused)
        self._metrics.dialogues.labels("scored").inc(len(results) - num_refused)
        return results

    async def _compute_outcomes(self, job: ScoreJob) -> list[Outcome]:
        if not job.dialogues:
            return []
        result = await self._cluster.score(job, self._metrics)
        self._metrics.batch_requests.observe(result.num_requests)
        self._metrics.audio_seconds.inc(result.audio_s)
        return result.outcomes

    def _read_dialogues(
        self, dialogues: Sequence[Dialogue], files: Mapping[str, bytes], require_audio: bool
    ) -> list[Messages | DialogueError]:
        read: list[Messages | DialogueError] = []
        for dialogue in dialogues:
            try:
                read.append(read_dialogue_form(dialogue, files, self._limits, require_audio=require_audio))
            except DialogueError as error:
                read.append(error)
        return read

    def _make_result(self, outcome: Outcome | DialogueError, options: Options, place: Place, number: int) -> Result:
        if isinstance(outcome, DialogueError):
            return Result(reward=None, error=make_problem(str(outcome), outcome.turn, place, number))
        if isinstance(outcome, str):
            return Result(reward=None, error=make_problem(outcome, find_turn(outcome), place, number))
        reward, heard = outcome
        result = Result(reward=reward, **asdict(heard))
        if options.calibrated and self._calibration is not None:
            result.calibrated = self._calibration.for_each([options.criterion], options.subset)(0, reward)
        return result

    def _check_options(self, options: Options) -> None:
        facts = self._cluster.facts
        if options.criterion not in facts.criteria:
            known = ", ".join(facts.criteria)
            raise _make_option_error(
                "criterion", f"criterion is {options.criterion[:80]!r}; this model knows {known}."
            )
        if options.calibrated and self._calibration is None:
            raise _make_option_error("calibrated", facts.no_calibration)
        if options.subset is not None and self._calibration is not None:
            subsets = sorted(self._calibration.parameters["subsets"])
            if options.subset not in subsets:
                found = f"subset is {options.subset[:80]!r}; the calibration knows {', '.join(subsets)}."
                raise _make_option_error("subset", found)


def _make_option_error(option: str, reason: str) -> BadRequestError:
    return BadRequestError([Problem(loc=["body", option], msg=reason, type="option")])


def _require_rewards(results: Sequence[Result]) -> None:
    problems = [result.error for result in results if result.error is not None]
    if problems:
        raise BadRequestError(problems)


def list_limits(settings: ServiceSettings) -> dict[str, Any]:
    names = ("max_body_bytes", "max_dialogues", "max_turns", "max_turn_s")
    values = {name: getattr(settings.limits, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
