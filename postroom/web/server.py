"""Serving the page: one process, one loop, and patience for nobody who dawdles."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .request_guard import MOST_HEAD, RequestGuard

HEAD_S = 10.0
MOST_CONNECTIONS = 256


class HurriedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with an end to waiting for the head of a request."""

    _hurry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came; a head that is not complete by now has only what is left of its time."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        else:
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        if self._hurry is None and not self.transport.is_closing():
            self._hurry = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None


def listen(host: str, port: int) -> socket.socket:
    """Take the address, or raise an OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(100)  # who comes before the page is ready waits a moment
    except BaseException:
        listener.close()
        raise
    return listener


class Server(uvicorn.Server):
    """uvicorn's, which would wait for pages that listen to the news for ever."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell those who listen that it is over, and go."""
        self._stop()
        await super().shutdown(sockets)


def make_server(app: RequestGuard) -> Server:
    """A server that answers until SIGINT or SIGTERM, once it is run on a listener."""
    config = uvicorn.Config(
        app,
        http=HurriedProtocol,
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
