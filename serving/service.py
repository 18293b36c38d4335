"""Run the server until it is stopped: one process with one model, or several replicas under Ray Serve."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sdiareward.common.local_ray import joins_cluster, open_ray, require_room
from sdiareward.common.user_errors import UserError
from sdiareward.scoring.model_spec import ScoringError

from .settings import ServiceSettings


if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)
# Longer than the usual pause between two requests on one connection.
_KEEP_ALIVE_S = 75
HEADER_TIMEOUT_S = 10.0
_QUIET = {"log_level": "WARNING", "enable_access_log": False}


class LimitedProtocol(H11Protocol):
    """Limit the time of a request's line and headers; uvicorn limits the pause between two requests alone.

    h11 limits their size, to 16 KiB; uvicorn's other parser, httptools, takes any.
    """

    _deadline: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_time()

    def _limit_time(self) -> None:
        """Close the connection at a time that further bytes do not move, unless a request is being answered."""
        # A body that nobody reads comes after its answer.
        is_answered = self.cycle is not None and self.cycle.response_complete
        if self.conn.their_state is not h11.IDLE and not is_answered:
            self._deadline = None
            return
        self._deadline = self._deadline or self.loop.time() + HEADER_TIMEOUT_S
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(self._deadline, self.timeout_keep_alive_handler)


def serve_model(settings: ServiceSettings, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve a model until SIGTERM or SIGINT; return when every accepted request is answered."""
    with _bind(settings) as listener:
        settings = replace(settings, port=listener.getsockname()[1])
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        announce = partial(on_ready, f"http://{host}:{settings.port}")
        if not settings.is_on_ray:
            _serve_here(settings, listener, announce)
            return
    # Ray's proxy binds the port itself.
    _serve_on_ray(settings, announce)


def _bind(settings: ServiceSettings) -> socket.socket:
    """Bind the address before the model is loaded, which may take minutes; requests are accepted afterwards."""
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ScoringError(f"cannot listen at {settings.host}, port {settings.port} ({error.strerror}).") from error
    return listener


def build_app(settings: ServiceSettings, device: str | None = None) -> FastAPI:
    """Load the model and return the application that serves it."""
    import torch

    from .app import create_app

    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    return create_app(settings, settings.model.load(device=device))


def _serve_here(settings: ServiceSettings, listener: socket.socket, announce: Callable[[], None]) -> None:
    config = uvicorn.Config(
        build_app(settings),
        log_level="warning",
        access_log=False,
        lifespan="off",
        loop="asyncio",
        http=LimitedProtocol,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(settings.drain_timeout_s),
    )
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        server.should_exit = True

    # Also before and after uvicorn handles signals itself.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    # Clients can connect; they are answered when the server runs.
    listener.listen(config.backlog)
    announce()
    server.run(sockets=[listener])


def _serve_on_ray(settings: ServiceSettings, announce: Callable[[], None]) -> None:
    """Run replicas behind Ray's own proxy, on the cluster of `RAY_ADDRESS` or a Ray of this machine."""
    # Read when Ray is imported. By default it reports its usage, and its workers have a low priority.
    for variable, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}.items():
        os.environ.setdefault(variable, value)
    with open_ray(UserError, "of one replica"):
        from ray import serve

        name = f"sdiareward-{socket.gethostname()}-{settings.port}"
        num_gpus = _count_gpus(settings)
        wanted = settings.num_replicas if joins_cluster() else settings.max_replicas or settings.num_replicas
        num_bytes = 0 if num_gpus else settings.model.weight_bytes
        of_each: dict[str, Any] = {"num_cpus": settings.cpus_per_replica, "num_gpus": num_gpus, "num_bytes": num_bytes}
        require_room(ScoringError, wanted, "replicas", **of_each)
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        try:
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            serve.start(http_options={"host": settings.host, "port": settings.port}, logging_config=_QUIET)
            _deploy(settings, name, num_gpus)
            announce()
            ended.wait()
        finally:
            # On a Ray cluster that outlives this process, the replicas would otherwise keep running.
            serve.delete(name)


def _count_gpus(settings: ServiceSettings) -> float:
    import ray

    if settings.gpus_per_replica is not None:
        return settings.gpus_per_replica
    return float(ray.cluster_resources().get("GPU", 0.0) > 0 and settings.model.device != "cpu")


def _deploy(settings: ServiceSettings, name: str, num_gpus: float) -> None:
    """Start the replicas and wait until they have loaded the model."""
    from ray import serve

    path = Path(settings.model.name)
    # Replicas run in another directory.
    model = replace(settings.model, name=str(path.absolute()) if path.exists() else settings.model.name)
    threads = settings.num_threads
    if threads is None and not num_gpus:
        threads = max((os.cpu_count() or 1) // (settings.max_replicas or settings.num_replicas), 1)
    own = replace(settings, model=model, num_threads=threads)
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": settings.cpus_per_replica, "num_gpus": num_gpus},
        "max_ongoing_requests": settings.limits.max_in_flight,
        "graceful_shutdown_timeout_s": settings.drain_timeout_s,
        # A second attempt to load a checkpoint fails too.
        "max_constructor_retry_count": 1,
    }
    if settings.max_replicas is None:
        options["num_replicas"] = settings.num_replicas
    else:
        options["autoscaling_config"] = {"min_replicas": settings.num_replicas, "max_replicas": settings.max_replicas}

    def build() -> FastAPI:
        return build_app(own, None if num_gpus else "cpu")

    try:
        replica: Any = serve.deployment(serve.ingress(build)(), **options)
        serve.run(replica.bind(), name=name, route_prefix="/", logging_config=_QUIET)
    except RuntimeError as error:
        application = serve.status().applications.get(name)
        deployments = application.deployments.values() if application else ()
        for text in (str(error), *(deployment.message for deployment in deployments)):
            _, found, reason = text.partition(f"{ScoringError.__name__}: ")
            if found:
                raise ScoringError(reason.splitlines()[0]) from error
        raise ScoringError(f"the model cannot be deployed ({str(error).splitlines()[0]}).") from error
