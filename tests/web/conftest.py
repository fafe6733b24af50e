"""A page on a base of its own, in this process or in another one."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from postroom.commands.spec import CommandSpec
from postroom.queue.submission import submit
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.testing import wait_until
from postroom.web import request_guard, server
from postroom.web.access_token import AccessToken
from postroom.web.app import create_app

TOKEN = "a-token-for-tests-only"
SCRIPT = "<script>alert('x')</script>"


@dataclass
class Page:
    """A running page server."""

    base: Base
    port: int
    token: AccessToken
    jobs: list[JobId] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token.secret}"}

    @property
    def cookie(self) -> str:
        return f"{self.token.cookie_name}={self.token.cookie}"

    def say(self, raw: bytes, *, timeout_s: float = 20.0) -> tuple[int, str]:
        """Send raw bytes; return the status (0: no answer) and the whole answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            answer = b""
            # The server may close the connection while we are still sending.
            with contextlib.suppress(ConnectionError):
                connection.sendall(raw)
                while chunk := connection.recv(65536):
                    answer += chunk
        parts = answer.split(b" ", 2)
        return (int(parts[1]) if len(parts) > 1 else 0), answer.decode(errors="replace")

    def listing(self) -> list[tuple[str, int, int]]:
        """Every file of the base, with its size and time of change."""
        found = []
        for parent, _, names in os.walk(self.base.root):
            for name in [*names, ""]:
                status = os.lstat(path := os.path.join(parent, name))
                found.append((path, status.st_size, status.st_mtime_ns))
        return sorted(found)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page with short time limits, of a base with three jobs whose names are scripts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_guard, "BODY_S", 0.5)
        patch.setattr(server, "HEAD_S", 0.5)
        base = create_base(tmp_path_factory.mktemp("web") / "base")
        asks = [CommandSpec(f"echo {SCRIPT}", name=SCRIPT, cwd="/") for _ in range(3)]
        jobs = submit(LocalFiles(), base, asks, project=SCRIPT)
        folder = base.job_folder(jobs[0].run, jobs[0].number)
        os.makedirs(folder)
        Path(folder, "0.OUT").write_text(f"{SCRIPT}\n\x1b[31mred\x1b[0m \x1b]0;title\x07\n")
        token = AccessToken(TOKEN, shared=True)
        listener = server.listen("127.0.0.1", 0)
        app = create_app(base, token, here="/")
        serving = server.make_server(app)
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: serving.started, what="the page")
            yield Page(base, listener.getsockname()[1], token, jobs)
        finally:
            serving.should_exit = True
            thread.join(10)
            listener.close()


@pytest.fixture
def browser(page: Page) -> Iterator[httpx.Client]:
    """A client that sends what a browser would."""
    headers = {"Cookie": page.cookie, "Origin": page.address, "Accept": "text/html"}
    with httpx.Client(base_url=page.address, headers=headers, timeout=60) as client:
        yield client


def start_page(
    base: Base, *options: str, port: int = 0, environment: Mapping[str, str] = os.environ
) -> tuple[subprocess.Popen[str], str]:
    """Start `postroom ui`; return its process and the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "postroom", "ui", base.root, "--port", str(port), *options],
        env={**environment, "POSTROOM_UI_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:"), address
    return process, address


def chromium() -> str:
    """Debian's Chromium; a test that needs it skips where it is missing, but not in CI."""
    found = shutil.which("chromium")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is missing: .ci/run installs it")
        pytest.skip("needs Chromium: apt-get install --no-install-recommends chromium")
    return found
