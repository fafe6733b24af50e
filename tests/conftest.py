"""What every test has: a ledger of its own, simulated cards, and no torch in the workers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.leftovers import Leftovers

if TYPE_CHECKING:
    from tests.groups import MemoryGroup


def pytest_configure() -> None:
    """Let Ctrl-C reach what the tests start: a shell's background jobs are born deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Fail a test that leaves a descriptor, a process or a thread; give it a ledger of its own."""
    ledger = tmp_path_factory.mktemp("ledger")
    leftovers = Leftovers(str(ledger))
    yield ledger
    request.node.funcargs.clear()  # what only the test had is closed when it is dropped
    found = leftovers.find()
    assert not found, "this test has left behind:\n  " + "\n  ".join(found)


@pytest.fixture(autouse=True)
def _same_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The next test finds the folder, the import path and the modules that this one found.

    Kernels that run in the process of a test change all three.
    """
    folder, path, made = os.getcwd(), sys.path[:], str(tmp_path_factory.getbasetemp())
    yield
    os.chdir(folder)
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__dict__", {}).get("__file__")).startswith(made):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _own_world(
    _leaves_nothing_behind: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = _leaves_nothing_behind
    ledger.chmod(0o700)
    monkeypatch.setenv("POSTROOM_LEDGER", str(ledger))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("POSTROOM_PROFILES", str(tmp_path_factory.mktemp("profiles")))
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "4x24G")
    monkeypatch.setenv("POSTROOM_PRELOAD", "numpy")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    """A control group with little memory; skipped where none can be made."""
    from tests.groups import MemoryGroup

    try:
        made = MemoryGroup()
    except OSError as error:
        pytest.skip(f"no memory group can be made: {error}")
    yield made
    made.remove()
