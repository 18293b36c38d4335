"""Run the server: one process with one model, or several replicas under Ray Serve."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sdiareward.common.machine import joins_cluster, open_ray, require_room
from sdiareward.scoring.model_spec import ScoringError

from .settings import ServiceSettings


if TYPE_CHECKING:
    from fastapi import FastAPI

HEADER_TIMEOUT_S = 10.0
_QUIET = {"log_level": "WARNING", "enable_access_log": False}


class LimitedProtocol(H11Protocol):
    """Limit the time to send a request's line and headers; uvicorn limits only the pause between requests.

    h11 limits their size to 16 KiB; uvicorn's other parser, httptools, has no limit.
    """

    _deadline: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_time()

    def _limit_time(self) -> None:
        """Close the connection after a fixed time, unless a request is being answered."""
        # A body that is not read arrives after the answer.
        is_answered = self.cycle is not None and self.cycle.response_complete
        if self.conn.their_state is not h11.IDLE and not is_answered:
            self._deadline = None
            return
        self._deadline = self._deadline or self.loop.time() + HEADER_TIMEOUT_S
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(self._deadline, self.timeout_keep_alive_handler)


def serve_model(settings: ServiceSettings, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve a model until SIGTERM or SIGINT; return after answering all accepted requests."""
    is_ip_6 = ":" in settings.host
    # Bind before loading the model, which may take minutes; requests are accepted afterwards.
    with socket.socket(socket.AF_INET6 if is_ip_6 else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            reason = f"cannot listen on {settings.host}, port {settings.port} ({error.strerror})."
            raise ScoringError(reason) from error
        settings = replace(settings, port=listener.getsockname()[1])
        url = f"http://{f'[{settings.host}]' if is_ip_6 else settings.host}:{settings.port}"
        if settings.max_replicas is None and settings.num_replicas == 1:
            _serve_here(settings, listener, lambda: on_ready(url))
            return
    # Ray's proxy binds the port.
    _serve_on_ray(settings, lambda: on_ready(url))


def build_app(settings: ServiceSettings, device: str | None = None) -> FastAPI:
    """Load the model and return its application."""
    import torch

    from .app import create_app

    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    return create_app(settings, settings.model.load(device=device))


def _on_end(end: Callable[[], Any]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())


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
        # Longer than a usual pause between two requests of one connection.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(settings.drain_timeout_s),
    )
    server = uvicorn.Server(config)
    # For the time before and after uvicorn's own signal handling.
    _on_end(lambda: setattr(server, "should_exit", True))
    # Clients can connect now; they get answers once the server runs.
    listener.listen(config.backlog)
    announce()
    server.run(sockets=[listener])


def _serve_on_ray(settings: ServiceSettings, announce: Callable[[], None]) -> None:
    """Run replicas behind Ray's proxy, on the cluster of `RAY_ADDRESS` or a local Ray."""
    # Ray reads these at import. By default it reports usage and runs workers at low priority.
    for variable, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}.items():
        os.environ.setdefault(variable, value)
    with open_ray():
        import ray
        from ray import serve

        name = f"sdiareward-{socket.gethostname()}-{settings.port}"
        num_gpus = settings.gpus_per_replica
        if num_gpus is None:
            num_gpus = float(ray.cluster_resources().get("GPU", 0.0) > 0 and settings.model.device != "cpu")
        each: dict[str, Any] = {"num_cpus": settings.cpus_per_replica, "num_gpus": num_gpus}
        num_bytes = 0 if num_gpus else settings.model.weight_bytes
        wanted = settings.num_replicas if joins_cluster() else settings.most_replicas
        require_room(wanted, "replicas", **each, num_bytes=num_bytes)
        ended = threading.Event()
        _on_end(ended.set)
        try:
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            serve.start(http_options={"host": settings.host, "port": settings.port}, logging_config=_QUIET)
            _deploy(settings, name, each)
            announce()
            ended.wait()
        finally:
            # Otherwise the replicas would keep running on a cluster that outlives this process.
            serve.delete(name)


def _deploy(settings: ServiceSettings, name: str, each: dict[str, Any]) -> None:
    """Start the replicas and wait until each has loaded the model."""
    from ray import serve

    if (path := Path(settings.model.name)).exists():
        # Replicas run in another directory.
        settings = replace(settings, model=replace(settings.model, name=str(path.absolute())))
    device = None if each["num_gpus"] else "cpu"
    if settings.num_threads is None and device:
        settings = replace(settings, num_threads=max((os.cpu_count() or 1) // settings.most_replicas, 1))
    scale = {"min_replicas": settings.num_replicas, "max_replicas": settings.max_replicas}
    number = {"autoscaling_config": scale} if settings.max_replicas else {"num_replicas": settings.num_replicas}
    deployment: Any = serve.deployment(
        serve.ingress(lambda: build_app(settings, device))(),
        ray_actor_options=each,
        max_ongoing_requests=settings.limits.max_in_flight,
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        # Loading a checkpoint again would also fail.
        max_constructor_retry_count=1,
        **number,
    )
    try:
        serve.run(deployment.bind(), name=name, route_prefix="/", logging_config=_QUIET)
    except RuntimeError as error:
        application = serve.status().applications.get(name)
        deployments = application.deployments.values() if application else ()
        for text in (str(error), *(deployment.message for deployment in deployments)):
            _, found, reason = text.partition(f"{ScoringError.__name__}: ")
            if found:
                raise ScoringError(reason.splitlines()[0]) from error
        raise ScoringError(f"the model cannot be deployed ({str(error).splitlines()[0]}).") from error
