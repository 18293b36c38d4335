"""Run the server until it is stopped; accepted requests are answered before it ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sdiareward.scoring.model_spec import ScoringError

from .settings import ServiceSettings


if TYPE_CHECKING:
    import uvicorn

# Longer than the usual pause between two requests on one connection.
_KEEP_ALIVE_S = 75


def serve_model(settings: ServiceSettings, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve a model until SIGTERM or SIGINT; return when every accepted request is answered."""
    import uvicorn

    from .app import create_app
    from .cluster import model_cluster
    from .connections import LimitedProtocol

    with _bind(settings) as listener:
        port = listener.getsockname()[1]
        with model_cluster(replace(settings, port=port)) as cluster:
            config = uvicorn.Config(
                create_app(cluster, settings),
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
            _stop_on_signals(server)
            # Clients can connect; they are answered when the server runs.
            listener.listen(config.backlog)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            on_ready(f"http://{host}:{port}")
            server.run(sockets=[listener])


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


def _stop_on_signals(server: uvicorn.Server) -> None:
    """Stop by returning, also before and after uvicorn handles signals itself."""

    def end(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
