"""Serves the page: one process, one event loop, and time limits for slow clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .request_guard import MOST_HEAD, RequestGuard

HEAD_S = 10.0
MOST_CONNECTIONS = 256


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP, with a time limit for the head of a request."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limit."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data; until the head is complete, the time limit runs on."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        else:
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address, or raise an OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(100)  # early connections wait until the page is ready
    except BaseException:
        listener.close()
        raise
    return listener


class Server(uvicorn.Server):
    """uvicorn's server, which would wait for ever for pages with live updates."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the event streams, then shut down."""
        self._stop()
        await super().shutdown(sockets)


def make_server(app: RequestGuard) -> Server:
    """A server that runs until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        interface="asgi3",
        log_level="error",
        access_log=False,  # an address may hold the token
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    return Server(config, app.stop)
