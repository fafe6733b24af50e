"""A base of its own for each test, a view of it, and a web server that takes messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from postroom.queue.queue_view import QueueView
from postroom.store.base import Base, create_base
from postroom.testing import wait_until


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


@pytest.fixture
def view(base: Base) -> Iterator[QueueView]:
    with QueueView(base) as opened:
        yield opened


class Webhook:
    """A server that keeps what is posted to it, and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[dict[str, object]] = []
        self.codes: list[int] = []  # the next answers; 200 when there is none
        self.location = ""  # where a redirect leads
        self.hangs = threading.Event()
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if webhook.hangs.is_set():
                    wait_until(lambda: not webhook.hangs.is_set(), timeout_s=60)
                code = webhook.codes.pop(0) if webhook.codes else 200
                if code == 200:
                    webhook.got.append(json.loads(body))
                self.send_response(code)
                if 300 <= code < 400:
                    self.send_header("Location", webhook.location)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    opened = Webhook()
    yield opened
    opened.hangs.clear()
    opened.server.shutdown()
    opened.server.server_close()
