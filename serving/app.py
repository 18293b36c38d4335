"""The HTTP interface: paths, authorization, limits, errors, metrics. Each process loads its own model."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Mapping
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
from sdiareward.common.machine import is_own_host, is_own_origin, list_own_names
from sdiareward.common.package import __version__
from sdiareward.scoring.calibration import Calibration, sigmoid
from sdiareward.scoring.request_queue import Request as ScoringRequest
from sdiareward.scoring.request_queue import submit
from sdiareward.scoring.reward_function import hash_context

from . import forms
from .forms import BadRequestError, CompareRequest, Options, Problem, Result, ScoreRequest
from .settings import Limits, ServiceSettings


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer

_DESCRIPTION = """Rewards of spoken dialogues: how much does an answer sound like a person in that conversation?

- `POST /score` returns the reward of each dialogue; higher is better.
- `POST /compare` returns the rewards of two versions of a dialogue, their margin, and the probability that `a` is
  better.

The body is JSON with recordings in base64, or multipart: the JSON in the part `request` and each recording in its own
part, referenced as `audio: {"file": NAME}`. If the server has an API key, send `Authorization: Bearer KEY`.
Rewards rank versions of one conversation; they do not rate a person."""
_COUNTED = ("/score", "/compare", "/health", "/metrics")
# Monitoring works even when the server is full.
_ALWAYS_OPEN = ("/health", "/metrics")
# Browsers and proxies send about thirty.
_MAX_HEADERS = 100
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The multipart body is malformed."},
    401: {"description": "The API key is missing or wrong."},
    403: {"description": "The server has no API key, and the request may come from another site."},
    408: {"description": "The body arrived too slowly."},
    413: {"description": "The body is too large."},
    431: {"description": "Too many headers."},
    422: {"description": "Cannot be scored; `detail` has the place and the reason.", "model": forms.Problems},
    503: {"description": "Overloaded; try again after `Retry-After` seconds."},
}


# The dialogues of a request by their location in it.
Places = Mapping[tuple[str | int, ...], forms.DialogueForm]


class Metrics:
    """Prometheus metrics of one process; clients cannot add label values."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("sdiareward_requests", "Answers.", ["path", "status"], **own)
        self.seconds = Histogram("sdiareward_request_seconds", "Request duration.", ["path"], buckets=_SECONDS, **own)
        self.in_flight = Gauge("sdiareward_requests_in_flight", "Requests in flight.", **own)
        self.dialogues = Counter("sdiareward_dialogues", "Dialogues.", ["outcome"], **own)
        self.audio_seconds = Counter("sdiareward_audio_seconds", "Seconds of audio scored.", **own)


class RequestScorer:
    """Answer requests: score valid dialogues, batched with other waiting ones, and report the invalid ones."""

    def __init__(self, scorer: Scorer, limits: Limits, metrics: Metrics):
        self.scorer = scorer
        self._limits = limits
        self._metrics = metrics
        self.criteria = sorted(scorer.processor.prompts)
        self.calibration: Calibration | None = None
        self.subsets: list[str] | None = None
        self._no_calibration = ""
        try:
            self.calibration = Calibration.of(scorer.model.config)
            self.subsets = sorted(self.calibration.parameters["subsets"])
        except ValueError as error:
            self._no_calibration = str(error)

    async def score(
        self, options: Options, places: Places, files: Mapping[str, bytes], *, is_strict: bool = True
    ) -> list[Result]:
        """Return the result for each location in the request; a shared context is computed once."""
        if options.calibrated and self.calibration is None:
            raise BadRequestError(Problem(loc=["body", "calibrated"], msg=self._no_calibration, type="option"))
        for name, choices in (("criterion", self.criteria), ("subset", self.subsets or [])):
            if (value := getattr(options, name)) is not None and value not in choices:
                reason = f"{name} is {value[:80]!r}; this model has {', '.join(choices)}."
                raise BadRequestError(Problem(loc=["body", name], msg=reason, type="option"))

        def read(form: forms.DialogueForm) -> Dialogue | str:
            try:
                return forms.read_dialogue_form(form, files, self._limits, require_audio=options.require_audio)
            except DialogueError as error:
                return str(error)

        found = await asyncio.to_thread(lambda: list(map(read, places.values())))
        valid = [each for each in found if not isinstance(each, str)]
        request = ScoringRequest(self.scorer, options.criterion, valid, list(map(hash_context, valid)))
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                outcomes = await asyncio.wrap_future(submit(request))
        except TimeoutError:
            reason = f"the model did not answer within {self._limits.request_timeout_s:g} s."
            raise HTTPException(503, reason, {"Retry-After": str(self._limits.retry_after_s)}) from None
        scored, results, problems = iter(outcomes), [], []
        for number, (place, each) in enumerate(zip(places, found, strict=True), start=1):
            outcome = each if isinstance(each, str) else next(scored)
            if isinstance(outcome, str):
                turn = re.match(r"turn (\d+)\b", outcome)
                problem = Problem(loc=["body", *place], msg=outcome, type="dialogue", dialogue=number)
                problem.turn = int(turn[1]) if turn else None
                problems.append(problem)
                results.append(Result(reward=None, error=problem))
                continue
            reward, heard = outcome
            results.append(Result(reward=reward, **asdict(heard)))
            self._metrics.audio_seconds.inc(heard.heard_s)
            if options.calibrated and self.calibration is not None:
                results[-1].calibrated = self.calibration.for_each([options.criterion], options.subset)(0, reward)
        self._metrics.dialogues.labels("refused").inc(len(problems))
        self._metrics.dialogues.labels("scored").inc(len(results) - len(problems))
        if problems and is_strict:
            raise BadRequestError(*problems)
        return results


def create_app(settings: ServiceSettings, scorer: Scorer) -> FastAPI:
    metrics, limits = Metrics(), settings.limits
    requests = RequestScorer(scorer, limits, metrics)
    app = FastAPIOffline(
        title="sdiareward",
        version=__version__,
        description=_DESCRIPTION,
        redoc_url=None,
        max_body_size=limits.max_body_bytes,
    )
    bearer = HTTPBearer(auto_error=False, description="The API key, if the server was started with one.")

    async def authorize(shown: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:  # noqa: B008
        if settings.api_key is None:
            return
        # A non-ASCII header counts as a wrong key.
        sent = shown.credentials.encode("utf-8", "surrogateescape") if shown else b""
        if not hmac.compare_digest(settings.api_key.encode(), sent):
            reason = "the API key is wrong." if shown else "send the API key as `Authorization: Bearer KEY`."
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})

    def describe(form: type[Options]) -> dict[str, Any]:
        """Describe a body that FastAPI does not parse itself, because it is JSON or multipart."""
        schema = {"$ref": f"#/components/schemas/{form.__name__}"}
        file = {"type": "string", "format": "binary"}
        parts = {"type": "object", "properties": {forms.REQUEST_PART: schema}, "additionalProperties": file}
        given = {"schema": schema, "example": forms.make_examples()[form]}
        body = {"required": True, "content": {forms.JSON: given, forms.MULTIPART: {"schema": parts}}}
        rules = {"responses": _ANSWERS, "dependencies": [Depends(authorize)]}
        return {"tags": ["rewards"], "openapi_extra": {"requestBody": body}, **rules}

    @app.post("/score", **describe(ScoreRequest))
    async def score(request: Request) -> forms.ScoreResponse:
        """Return the reward of each dialogue, higher is better.

        With `skip_bad`, a dialogue that cannot be scored has an `error` instead of a reward; without it, the whole
        request is refused.
        """
        form, files = await forms.read_request(request, ScoreRequest, limits)
        if (number := len(form.dialogues)) > limits.max_dialogues:
            reason = f"has {number} dialogues; send at most {limits.max_dialogues} per request."
            raise BadRequestError(Problem(loc=["body", "dialogues"], msg=reason, type="too_many"))
        places: Places = {("dialogues", index): each for index, each in enumerate(form.dialogues)}
        results = await requests.score(form, places, files, is_strict=not form.skip_bad)
        return forms.ScoreResponse(criterion=form.criterion, results=results)

    @app.post("/compare", **describe(CompareRequest))
    async def compare(request: Request) -> forms.CompareResponse:
        """Return the rewards of two versions of a dialogue, their margin, and the probability that `a` is better."""
        form, files = await forms.read_request(request, CompareRequest, limits)
        a, b = await requests.score(form, {("a",): form.a, ("b",): form.b}, files)
        assert a.reward is not None and b.reward is not None
        margin = a.reward - b.reward
        probability = sigmoid(margin)
        if form.subset is not None and requests.calibration is not None:
            probability = requests.calibration.compute_probability(margin, form.subset)
        return forms.CompareResponse(criterion=form.criterion, a=a, b=b, margin=margin, probability=probability)

    @app.get("/", include_in_schema=False)
    async def open_docs() -> RedirectResponse:
        return RedirectResponse("docs")

    @app.get("/health", tags=["monitoring"])
    async def health() -> forms.Health:
        """Return the model and the limits of the server."""
        shown = ("max_body_bytes", "max_dialogues", "max_turns", "max_turn_s")
        return forms.Health(
            status="ok",
            model=settings.model.name,
            criteria=requests.criteria,
            calibration_subsets=requests.subsets,
            max_turn_s=scorer.processor.max_turn_s,
            limits={name: getattr(limits, name) for name in shown},
        )

    @app.get("/metrics", response_class=Response, tags=["monitoring"], dependencies=[Depends(authorize)])
    async def show_metrics() -> Response:
        """Return the metrics in Prometheus format."""
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(BadRequestError)
    async def refuse(request: Request, error: BadRequestError) -> JSONResponse:
        return JSONResponse(forms.Problems(detail=error.problems).model_dump(), 422)

    @app.exception_handler(ClientDisconnect)
    async def ignore_disconnect(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)

    add_gate(app, settings, metrics)
    _, schemas = models_json_schema(
        [(ScoreRequest, "validation"), (CompareRequest, "validation")], ref_template="#/components/schemas/{model}"
    )
    # FastAPI caches the first schema.
    app.openapi()["components"]["schemas"].update(schemas["$defs"])
    return app


def add_gate(app: FastAPI, settings: ServiceSettings, metrics: Metrics) -> None:
    """Limit headers, requests in flight and, without a key, the origin of requests; count all requests."""
    limits, names, num_in_flight = settings.limits, list_own_names(settings.host), 0
    metrics.in_flight.set_function(lambda: num_in_flight)

    def find_problem(request: Request, path: str) -> JSONResponse | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        headers, status, reason = None, 403, ""
        if len(request.headers) > _MAX_HEADERS:
            status, reason = 431, f"send at most {_MAX_HEADERS} headers."
        elif num_in_flight > limits.max_in_flight and path not in _ALWAYS_OPEN:
            status, reason = 503, "too many requests are in flight."
            headers = {"Retry-After": str(limits.retry_after_s)}
        elif settings.api_key is None and not is_own_host(host, names):
            reason = f"the host is {host[:80]!r}; use an address of the server, or start it with an API key."
        elif settings.api_key is None and not is_own_origin(origin, host):
            reason = f"pages from {str(origin)[:80]!r} may not use a server without an API key."
        return JSONResponse({"detail": reason}, status, headers) if reason else None

    @app.middleware("http")
    async def gate(request: Request, call_next: Any) -> Response:
        nonlocal num_in_flight
        path = request.url.path if request.url.path in _COUNTED else "other"
        status, start = 500, time.perf_counter()
        num_in_flight += 1
        try:
            answer: Response = find_problem(request, path) or await call_next(request)
            status = answer.status_code
            return answer
        finally:
            num_in_flight -= 1
            metrics.requests.labels(path, str(status)).inc()
            metrics.seconds.labels(path).observe(time.perf_counter() - start)
