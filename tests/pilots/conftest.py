"""Pilots for a test: real processes, ended with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from postroom.master import Master
from postroom.session.sessions import Sessions
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.pilot_records import (
    PilotGroup,
    PilotGroups,
    PilotRecord,
    PilotState,
    change_groups,
    read_pilots,
)
from postroom.system.process_tree import holders
from postroom.testing import PATIENCE_S, wait_until


class Pilots:
    """A base, its groups of pilots, and their processes."""

    def __init__(self, folder: Path) -> None:
        self.files = LocalFiles()
        self.base = create_base(folder / "base")
        self.project = folder / "project"
        self.project.mkdir()
        self.folder = folder
        shutil.copy(Path(__file__).with_name("kernels.py"), self.project)
        self.sessions = Sessions(self.base)

    def add(self, group: PilotGroup, name: str = "p") -> None:
        """Have a group of pilots."""

        def change(groups: PilotGroups) -> None:
            groups.groups[name] = group

        change_groups(self.files, self.base, change)
        self.sessions.keep_pilots()

    def change(self, name: str = "p", **fields: object) -> None:
        """Change a group."""

        def apply(groups: PilotGroups) -> None:
            groups.groups[name] = replace(groups.groups[name], **fields)  # type: ignore[arg-type]

        change_groups(self.files, self.base, apply)

    def master(self) -> Master:
        return Master(self.base.root, import_folder=self.project)

    def records(self, state: PilotState | None = None) -> list[PilotRecord]:
        """The pilots in a state; None: those that live."""
        found = read_pilots(self.files, self.base).values()
        if state is None:
            return [one for one in found if one.state is not PilotState.ENDED]
        return [one for one in found if one.state is state]

    def stand_ins(self) -> list[int]:
        """The pids of all stand-ins."""
        return [pid for one in self.records() for pid in holders(self.base.agent_lock(one.pilot))]

    def keeper(self) -> list[int]:
        return holders(self.base.pilot_keeper_lock)

    def wait_until(self, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        wait_until(lambda: bool(condition()), folder=self.base.root, timeout_s=timeout_s)

    def close(self) -> None:
        """End everything; fail if something stays."""
        with contextlib.suppress(OSError):
            change_groups(self.files, self.base, lambda groups: groups.groups.clear())
        for pid in self.keeper():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_until(lambda: not self.keeper())
        give_up_at = time.monotonic() + 30
        while (pids := self.stand_ins()) and time.monotonic() < give_up_at:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            time.sleep(0.2)
        keeper = self.sessions._keeper
        if keeper is not None:
            keeper.wait()


@pytest.fixture
def pilots(tmp_path: Path) -> Iterator[Pilots]:
    made = Pilots(tmp_path)
    yield made
    made.close()
