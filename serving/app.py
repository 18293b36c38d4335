"""The HTTP interface: paths, authorization, limits, errors, metrics. Each process has a model of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from sdiareward.chat_sdiareward import Dialogue, DialogueError
from sdiareward.common.own_names import is_own_host, is_own_origin, list_own_names
from sdiareward.common.version import __version__
from sdiareward.scoring.calibration import Calibration, sigmoid
from sdiareward.scoring.request_queue import Outcome, submit
from sdiareward.scoring.request_queue import Request as ScoringRequest
from sdiareward.scoring.reward_function import hash_context

from . import examples
from .bodies import JSON, MULTIPART, REQUEST_PART, BadRequestError, find_turn, read_body, read_dialogue_form
from .forms import (
    CompareRequest,
    CompareResponse,
    Health,
    Options,
    Problem,
    Problems,
    Result,
    ScoreRequest,
    ScoreResponse,
)
from .forms import Dialogue as DialogueForm
from .settings import Limits, ServiceSettings


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer

_COUNTED = ("/score", "/compare", "/health", "/metrics")
# Monitoring must get an answer even when the server is full.
_ALWAYS_OPEN = ("/health", "/metrics")
# Browsers and proxies send some thirty.
_MAX_HEADERS = 100
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The multipart body is malformed."},
    401: {"description": "No API key, or a wrong one."},
    403: {"description": "The server has no API key, and another site may have caused the request."},
    408: {"description": "The body came too slowly."},
    413: {"description": "The body is too large."},
    431: {"description": "There are too many headers."},
    422: {"description": "Something cannot be scored: where, and why.", "model": Problems},
    503: {"description": "Overloaded; try again after `Retry-After` seconds."},
}
# Where a dialogue is in the request.
Place = Sequence[str | int]


class Metrics:
    """Metrics of one process, for Prometheus; clients cannot add values of labels."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter("sdiareward_requests", "Answers.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "sdiareward_request_seconds", "Time to answer.", ["path"], buckets=_SECONDS, registry=registry
        )
        self.in_flight = Gauge("sdiareward_requests_in_flight", "Requests in flight.", registry=registry)
        self.dialogues = Counter("sdiareward_dialogues", "Dialogues.", ["outcome"], registry=registry)
        self.audio_seconds = Counter("sdiareward_audio_seconds", "Seconds of audio scored.", registry=registry)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class RequestScorer:
    """Answer requests: score their valid dialogues, together with others that wait, and explain the other ones."""

    def __init__(self, scorer: Scorer, limits: Limits, metrics: Metrics):
        self.scorer = scorer
        self._limits = limits
        self._metrics = metrics
        self.calibration: Calibration | None = None
        try:
            self.calibration = Calibration.of(scorer.model.config)
        except ValueError as error:
            self._no_calibration = str(error)

    async def score(self, form: ScoreRequest, files: Mapping[str, bytes]) -> ScoreResponse:
        if len(form.dialogues) > self._limits.max_dialogues:
            reason = f"has {len(form.dialogues)} dialogues; send at most {self._limits.max_dialogues} at once."
            raise BadRequestError(Problem(loc=["body", "dialogues"], msg=reason, type="too_many"))
        places = [("dialogues", index) for index in range(len(form.dialogues))]
        results = await self._score(form, form.dialogues, places, files, is_strict=not form.skip_bad)
        return ScoreResponse(criterion=form.criterion, results=results)

    async def compare(self, form: CompareRequest, files: Mapping[str, bytes]) -> CompareResponse:
        a, b = await self._score(form, [form.a, form.b], [("a",), ("b",)], files, is_strict=True)
        assert a.reward is not None and b.reward is not None
        margin = a.reward - b.reward
        probability = sigmoid(margin)
        if form.subset is not None and self.calibration is not None:
            probability = self.calibration.compute_probability(margin, form.subset)
        return CompareResponse(criterion=form.criterion, a=a, b=b, margin=margin, probability=probability)

    async def _score(
        self,
        options: Options,
        dialogues: Sequence[DialogueForm],
        places: Sequence[Place],
        files: Mapping[str, bytes],
        *,
        is_strict: bool,
    ) -> list[Result]:
        self._check_options(options)
        read = await asyncio.to_thread(self._read, dialogues, files, options.require_audio)
        valid = [each for each in read if not isinstance(each, DialogueError)]
        outcomes = iter(await self._compute(valid, options.criterion))
        results = []
        for number, (each, place) in enumerate(zip(read, places, strict=True), start=1):
            outcome = each if isinstance(each, DialogueError) else next(outcomes)
            results.append(self._make_result(outcome, options, place, number))
        problems = [result.error for result in results if result.error is not None]
        self._metrics.dialogues.labels("refused").inc(len(problems))
        self._metrics.dialogues.labels("scored").inc(len(results) - len(problems))
        self._metrics.audio_seconds.inc(sum(result.heard_s or 0.0 for result in results))
        if problems and is_strict:
            raise BadRequestError(*problems)
        return results

    def _read(
        self, dialogues: Sequence[DialogueForm], files: Mapping[str, bytes], require_audio: bool
    ) -> list[Dialogue | DialogueError]:
        read: list[Dialogue | DialogueError] = []
        for dialogue in dialogues:
            try:
                read.append(read_dialogue_form(dialogue, files, self._limits, require_audio=require_audio))
            except DialogueError as error:
                read.append(error)
        return read

    async def _compute(self, dialogues: list[Dialogue], criterion: str) -> list[Outcome]:
        """Return the outcomes of dialogues; the shared context of several answers is computed once."""
        if not dialogues:
            return []
        groups = [hash_context(dialogue) for dialogue in dialogues]
        request = ScoringRequest(self.scorer, criterion, dialogues, groups)
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                return await asyncio.wrap_future(submit(request))
        except TimeoutError:
            reason = f"the model did not answer within {self._limits.request_timeout_s:g} s."
            raise HTTPException(503, reason) from None

    def _make_result(self, outcome: Outcome | DialogueError, options: Options, place: Place, number: int) -> Result:
        if isinstance(outcome, (DialogueError, str)):
            turn = outcome.turn if isinstance(outcome, DialogueError) else find_turn(outcome)
            problem = Problem(loc=["body", *place], msg=str(outcome), type="dialogue", dialogue=number, turn=turn)
            return Result(reward=None, error=problem)
        reward, heard = outcome
        result = Result(reward=reward, **asdict(heard))
        if options.calibrated and self.calibration is not None:
            result.calibrated = self.calibration.for_each([options.criterion], options.subset)(0, reward)
        return result

    def _check_options(self, options: Options) -> None:
        criteria = sorted(self.scorer.processor.prompts)
        subsets = sorted(self.calibration.parameters["subsets"]) if self.calibration else []
        if options.criterion not in criteria:
            name, reason = "criterion", f"is {options.criterion[:80]!r}; this model knows {', '.join(criteria)}."
        elif options.calibrated and self.calibration is None:
            raise BadRequestError(Problem(loc=["body", "calibrated"], msg=self._no_calibration, type="option"))
        elif options.subset is not None and options.subset not in subsets:
            name, reason = "subset", f"is {options.subset[:80]!r}; the calibration knows {', '.join(subsets)}."
        else:
            return
        raise BadRequestError(Problem(loc=["body", name], msg=f"{name} {reason}", type="option"))


def create_app(settings: ServiceSettings, scorer: Scorer) -> FastAPI:
    metrics = Metrics()
    requests = RequestScorer(scorer, settings.limits, metrics)
    app = FastAPIOffline(
        title="sdiareward",
        version=__version__,
        description=examples.DESCRIPTION,
        redoc_url=None,
        max_body_size=settings.limits.max_body_bytes,
    )
    bearer = HTTPBearer(auto_error=False, description="The API key, if the server was started with one.")

    async def authorize(shown: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:  # noqa: B008
        key = settings.api_key
        if key is not None and not (shown and key.matches(shown.credentials)):
            reason = "the API key is wrong." if shown else "send the API key as `Authorization: Bearer KEY`."
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})

    rewards: dict[str, Any] = {"tags": ["rewards"], "dependencies": [Depends(authorize)], "responses": _ANSWERS}

    @app.post("/score", openapi_extra=_describe_body(ScoreRequest, examples.score_request()), **rewards)
    async def score(request: Request) -> ScoreResponse:
        """Return the reward of each dialogue, higher is better.

        With `skip_bad` a dialogue that cannot be scored has an `error` in place of its reward; without it the whole
        request is refused.
        """
        body = await read_body(request, settings.limits)
        return await requests.score(await asyncio.to_thread(body.parse, ScoreRequest), body.files)

    @app.post("/compare", openapi_extra=_describe_body(CompareRequest, examples.compare_request()), **rewards)
    async def compare(request: Request) -> CompareResponse:
        """Return the rewards of two versions of a dialogue, their margin, and the probability that `a` is better."""
        body = await read_body(request, settings.limits)
        return await requests.compare(await asyncio.to_thread(body.parse, CompareRequest), body.files)

    @app.get("/", include_in_schema=False)
    async def open_docs() -> RedirectResponse:
        return RedirectResponse("docs")

    @app.get("/health", tags=["monitoring"])
    async def health() -> Health:
        """Report the model and what the server accepts."""
        calibration, processor, limits = requests.calibration, scorer.processor, settings.limits
        shown = ("max_body_bytes", "max_dialogues", "max_turns", "max_turn_s")
        return Health(
            status="ok",
            model=settings.model.name,
            criteria=sorted(processor.prompts),
            calibration_subsets=sorted(calibration.parameters["subsets"]) if calibration else None,
            max_turn_s=processor.max_turn_s,
            limits={name: value for name in shown if (value := getattr(limits, name)) is not None},
        )

    @app.get("/metrics", response_class=Response, tags=["monitoring"], dependencies=[Depends(authorize)])
    async def show_metrics() -> Response:
        """Return the metrics in the format of Prometheus."""
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    _add_errors(app, settings.limits)
    _add_gate(app, settings, metrics)
    _add_body_schemas(app)
    return app


def _add_errors(app: FastAPI, limits: Limits) -> None:
    @app.exception_handler(BadRequestError)
    async def refuse(request: Request, error: BadRequestError) -> JSONResponse:
        return JSONResponse(Problems(detail=error.problems).model_dump(), 422)

    @app.exception_handler(503)
    async def ask_to_retry(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, 503, {"Retry-After": str(limits.retry_after_s)})

    @app.exception_handler(ClientDisconnect)
    async def ignore_disconnect(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)

    @app.exception_handler(Exception)
    async def report_failure(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": "the model failed on this request; its log has the reason."}, 500)


def _add_gate(app: FastAPI, settings: ServiceSettings, metrics: Metrics) -> None:
    """Limit headers, requests in flight and, without a key, where requests come from; count all requests."""
    limits, names, num_in_flight = settings.limits, list_own_names(settings.host), 0

    def find_problem(request: Request, path: str) -> JSONResponse | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if len(request.headers) > _MAX_HEADERS:
            return JSONResponse({"detail": f"send at most {_MAX_HEADERS} headers."}, 431)
        if num_in_flight > limits.max_in_flight and path not in _ALWAYS_OPEN:
            headers = {"Retry-After": str(limits.retry_after_s)}
            return JSONResponse({"detail": "too many requests are in flight."}, 503, headers)
        if settings.api_key is None and not is_own_host(host, names):
            reason = f"the host is {host[:80]!r}; use an address of the server, or start it with an API key."
            return JSONResponse({"detail": reason}, 403)
        if settings.api_key is None and not is_own_origin(origin, host):
            reason = f"a page of {str(origin)[:80]!r} may not use a server without an API key."
            return JSONResponse({"detail": reason}, 403)
        return None

    @app.middleware("http")
    async def gate(request: Request, call_next: Any) -> Response:
        nonlocal num_in_flight
        path = request.url.path if request.url.path in _COUNTED else "other"
        status, start = 500, time.perf_counter()
        num_in_flight += 1
        metrics.in_flight.set(num_in_flight)
        try:
            answer: Response = find_problem(request, path) or await call_next(request)
            status = answer.status_code
            return answer
        finally:
            num_in_flight -= 1
            metrics.in_flight.set(num_in_flight)
            metrics.requests.labels(path, str(status)).inc()
            metrics.seconds.labels(path).observe(time.perf_counter() - start)


def _describe_body(form: type, example: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a body; FastAPI does not parse bodies, which are JSON or multipart."""
    schema = {"$ref": f"#/components/schemas/{form.__name__}"}
    file = {"type": "string", "format": "binary"}
    parts = {"type": "object", "properties": {REQUEST_PART: schema}, "additionalProperties": file}
    content: dict[str, Any] = {JSON: {"schema": schema, "example": example}, MULTIPART: {"schema": parts}}
    return {"requestBody": {"required": True, "content": content}}


def _add_body_schemas(app: FastAPI) -> None:
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _, forms = models_json_schema(
                [(ScoreRequest, "validation"), (CompareRequest, "validation")],
                ref_template="#/components/schemas/{model}",
            )
            make()["components"]["schemas"].update(forms["$defs"])
        return make()

    app.openapi = openapi  # type: ignore[method-assign]
