"""Real sessions for each test, and ways to look at their processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postroom import testing
from postroom.master import Master
from postroom.testing import RealSessions, wait_until


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[RealSessions]:
    """RealSessions on a new base, none of which outlives the test."""
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(Path(__file__).with_name("kernels.py"), project)
    with testing.sessions(tmp_path / "base", import_folder=project) as opened:
        yield opened


def drive(master: Master, condition: Callable[[], object], *, what: str = "it") -> None:
    """Have a Master work, round by round, until something is true."""

    def came_true() -> bool:
        master.step(time.monotonic())
        return bool(condition())

    wait_until(came_true, what=what, folder=master.base.root)


def running(token: str) -> list[str]:
    """The names of living processes that carry a token in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
                if words[0].startswith(token.encode()):
                    found.append(words[0].decode())
    return sorted(found)
