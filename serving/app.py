"""The HTTP interface: paths, authorization, errors, metrics."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sdiareward.common.version import __version__

from . import openapi
from .bodies import BadRequestError, read_body
from .cluster import UnavailableError
from .forms import CompareRequest, CompareResponse, Health, Problems, ScoreRequest, ScoreResponse
from .metrics import Metrics
from .own_names import OwnNames
from .replica import ScoringFailedError
from .scoring import RequestScorer, list_limits
from .settings import Limits, ServiceSettings


if TYPE_CHECKING:
    from .cluster import ModelCluster

_COUNTED = ("/score", "/compare", "/health", "/metrics")
# Monitoring must get an answer even when the server is full.
_ALWAYS_OPEN = ("/health", "/metrics")
# Browsers and proxies send some thirty.
_MAX_HEADERS = 100
_ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The multipart body is malformed."},
    401: {"description": "No API key, or a wrong one."},
    403: {"description": "The server has no API key, and another site may have caused the request."},
    408: {"description": "The body came too slowly."},
    413: {"description": "The body is too large."},
    431: {"description": "There are too many headers."},
    422: {"description": "Something cannot be scored: where, and why.", "model": Problems},
    503: {"description": "Overloaded, or no replica of the model; try again after `Retry-After` seconds."},
}


def create_app(cluster: ModelCluster, settings: ServiceSettings) -> ASGIApp:
    metrics = Metrics()
    app = FastAPIOffline(
        title="sdiareward",
        version=__version__,
        description=openapi.DESCRIPTION,
        openapi_tags=openapi.TAGS,
        redoc_url=None,
        max_body_size=settings.limits.max_body_bytes,
    )
    _add_scoring(app, RequestScorer(cluster, settings, metrics), settings)
    _add_monitoring(app, cluster, settings, metrics)
    _add_errors(app, settings.limits)
    _add_body_schemas(app)
    own = OwnNames(app, settings.host) if settings.api_key is None else app
    return Gate(own, metrics, settings.limits)


def _authorize(settings: ServiceSettings) -> Any:
    """Return the dependency that requires the API key, if there is one."""
    bearer = HTTPBearer(auto_error=False, description="The API key, if the server was started with one.")

    async def authorize(shown: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:  # noqa: B008
        key = settings.api_key
        if key is not None and not (shown and key.matches(shown.credentials)):
            reason = "the API key is wrong." if shown else "send the API key as `Authorization: Bearer KEY`."
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})

    return Depends(authorize)


def _with_answer(described: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an operation with all responses; success has an example."""
    good = openapi.with_example(described["response_description"], example)
    return {**described, "responses": {200: good, **_ANSWERS}}


def _add_scoring(app: FastAPI, scorer: RequestScorer, settings: ServiceSettings) -> None:
    @app.post(
        "/score",
        response_model=ScoreResponse,
        openapi_extra=openapi.describe_body(ScoreRequest, openapi.score_request()),
        **_with_answer(openapi.describe_score(), openapi.score_answer()),
        dependencies=[_authorize(settings)],
    )
    async def score(request: Request) -> ScoreResponse:
        """Return the reward of each dialogue, higher is better.

        With `skip_bad` a dialogue that cannot be scored has an `error` in place of its reward; without it the whole
        request is refused.
        """
        body = await read_body(request, settings.limits)
        return await scorer.score(await asyncio.to_thread(body.parse, ScoreRequest), body.files)

    @app.post(
        "/compare",
        response_model=CompareResponse,
        openapi_extra=openapi.describe_body(CompareRequest, openapi.compare_request()),
        **_with_answer(openapi.describe_compare(), openapi.compare_answer()),
        dependencies=[_authorize(settings)],
    )
    async def compare(request: Request) -> CompareResponse:
        """Return the rewards of two versions of a dialogue, their margin, and the probability that `a` is better."""
        body = await read_body(request, settings.limits)
        return await scorer.compare(await asyncio.to_thread(body.parse, CompareRequest), body.files)


def _add_monitoring(app: FastAPI, cluster: ModelCluster, settings: ServiceSettings, metrics: Metrics) -> None:
    @app.get("/", include_in_schema=False)
    async def open_docs() -> RedirectResponse:
        return RedirectResponse("docs")

    @app.get(
        "/health",
        response_model=Health,
        tags=[openapi.MONITORING],
        summary="Report model, criteria and limits",
        responses={503: {"model": Health, "description": "No replica of the model can answer now."}},
    )
    async def health(response: Response) -> Health:
        """Report whether a replica of the model can answer, and what the server accepts."""
        facts, num_replicas = cluster.facts, await cluster.num_replicas()
        if not num_replicas:
            response.status_code = 503
        return Health(
            status="ok" if num_replicas else "unavailable",
            model=settings.model.name,
            criteria=list(facts.criteria),
            calibration_subsets=sorted(facts.calibration["subsets"]) if facts.calibration else None,
            max_turn_s=facts.max_turn_s,
            num_replicas=num_replicas,
            limits=list_limits(settings),
        )

    @app.get(
        "/metrics",
        response_class=Response,
        tags=[openapi.MONITORING],
        summary="Give metrics to Prometheus",
        dependencies=[_authorize(settings)],
    )
    async def show_metrics() -> Response:
        """Return the metrics in the format of Prometheus."""
        metrics.replicas.set(await cluster.num_replicas())
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_errors(app: FastAPI, limits: Limits) -> None:
    @app.exception_handler(BadRequestError)
    async def refuse(request: Request, error: BadRequestError) -> JSONResponse:
        return JSONResponse(Problems(detail=error.problems).model_dump(), 422)

    @app.exception_handler(UnavailableError)
    async def ask_to_retry(request: Request, error: UnavailableError) -> JSONResponse:
        return _make_unavailable_response(str(error), limits)

    @app.exception_handler(ScoringFailedError)
    async def report_failure(request: Request, error: ScoringFailedError) -> JSONResponse:
        return JSONResponse({"detail": "the model failed on this request; its log has the reason."}, 500)

    @app.exception_handler(ClientDisconnect)
    async def ignore_disconnect(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)


def _make_unavailable_response(reason: str, limits: Limits) -> JSONResponse:
    return JSONResponse({"detail": reason}, 503, {"Retry-After": str(limits.retry_after_s)})


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


class Gate:
    """Middleware that limits the number of headers and of requests in flight, and counts all requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: Limits):
        self._app = app
        self._metrics = metrics
        self._limits = limits
        self._num_in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in _COUNTED else "other"
        status, start = 500, time.perf_counter()

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        is_full = self._num_in_flight >= self._limits.max_in_flight and path not in _ALWAYS_OPEN
        answer = _make_unavailable_response("too many requests are in flight.", self._limits) if is_full else self._app
        if len(scope["headers"]) > _MAX_HEADERS:
            answer = JSONResponse({"detail": f"send at most {_MAX_HEADERS} headers."}, 431)
        self._num_in_flight += 1
        self._metrics.in_flight.set(self._num_in_flight)
        try:
            await answer(scope, receive, send_and_record)
        finally:
            self._num_in_flight -= 1
            self._metrics.in_flight.set(self._num_in_flight)
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - start)
