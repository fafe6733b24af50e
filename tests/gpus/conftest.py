from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent


def wait_until(condition: Callable[[], Any], *, limit_s: float = 30.0, show: Any = None) -> Any:
    """Poll a condition; on giving up, show what was there."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            seen = show() if callable(show) else show
            raise AssertionError(f"it never came about: {condition}; seen: {seen}")
        time.sleep(0.01)


def needs(program: str) -> str:
    """Return the path of a program; a missing one skips at home and fails in CI."""
    found = shutil.which(program)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{program} is not installed")
        pytest.skip(f"{program} is not installed")
    return found


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
            "from postroom.gpus.ledger import open_ledger, Request\n"
            "ledger = open_ledger()\n"
        )
        return start(sys.executable, "-c", head + code, *arguments, **options)

    return python
