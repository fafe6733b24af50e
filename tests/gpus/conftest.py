from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .ledgerkit import REPOSITORY, RedisServer


@pytest.fixture(autouse=True)
def _only_simulated_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own set-up reaches the tests."""
    for name in list(os.environ):
        if name.startswith("POSTROOM_") or name.endswith("_VISIBLE_DEVICES"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "4x24G")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger's folder, made the machine's default for children, too."""
    made = tmp_path / "ledger"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("POSTROOM_LEDGER", str(made))
    return made


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes, each in a session of its own, and ends exactly those at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **options: Any) -> subprocess.Popen[str]:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE} | options
        process = subprocess.Popen(
            command, text=True, start_new_session=True, cwd=REPOSITORY, **options
        )
        started.append(process)
        return process

    yield start
    for process in started:
        # The whole session: a test's script may have left children behind on purpose.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def python(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Starts a piece of Python with the ledger at hand."""

    def python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        head = (
            "import os, sys, time, signal\n"
            "from postroom.gpus.ledger.protocol import open_ledger, LeaseRequest\n"
            "ledger = open_ledger()\n"
        )
        return start(sys.executable, "-c", head + code, *arguments, **options)

    return python


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    if server.process is not None:
        server.kill()


@pytest.fixture(params=["files", "redis"])
def ledger(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each store in turn, which children of the test open, too."""
    from postroom.gpus.ledger.protocol import open_ledger

    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        monkeypatch.setenv("POSTROOM_LEDGER", server.url(folder, f"t{os.urandom(4).hex()}"))
    return open_ledger()
