"""What the tests of cards and leases share."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
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


class RedisServer:
    """A real redis-server on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.program = needs("redis-server")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                self.program,
                *("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)),
                *("--save", "", "--appendonly", "no"),
            ],
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda: self._answers(), show="redis-server does not answer")

    def client(self) -> Any:
        import redis

        return redis.Redis(unix_socket_path=str(self.socket))

    def _answers(self) -> bool:
        import redis

        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def url(self, folder: Path, prefix: str) -> str:
        return f"unix://{self.socket}?prefix={prefix}&folder={folder}"
