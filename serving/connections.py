"""Limit the time that the line and the headers of a request take: uvicorn limits the pause between two requests alone.

h11 limits their size, to 16 KiB; uvicorn's other parser, httptools, takes any.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


HEADER_TIMEOUT_S = 10.0


class LimitedProtocol(H11Protocol):
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
