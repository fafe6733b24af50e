"""Records what a standing queue sees: the curves of GPUs, who computes, what projects have run.

`postroom master` has one, in a thread of its own: a driver that does not answer must not stop the
scheduler. It reads the journal, so no job waits for it. What it writes is in the ledger
(`gpus.ledger.activity`, `project_use`), and `postroom gpu report` reads it. If it is killed, at
most a minute is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable

from ..errors import BadFileError, PostroomError
from ..gpus.cards.inventory import Card, CardWatch
from ..gpus.ledger.activity import HOUR_S, KEPT_HOURS, ActivityMeter
from ..gpus.ledger.folder_ledger import local_part
from ..gpus.ledger.protocol import Ledger, open_ledger
from ..store.agents import read_agent_info
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.runs import read_run_info
from .card_curves import CurveRecorder

LOOK_S = 10.0
WRITE_S = 60.0
# While nobody holds a GPU, a process is started for each look at them: seldom, and where there is
# none, hardly ever.
IDLE_S = 60.0
NO_CARDS_S = 600.0
_MOST_AT_ONCE = 4 << 20  # bytes of the journal


class UseRecorder:
    """Looks at the GPUs and at the journal of a base, from one step to the next."""

    def __init__(
        self,
        base: Base,
        ledger: Ledger,
        *,
        journal_from: int | None = None,
        cards: Callable[[], list[Card]] | None = None,
    ) -> None:
        """`journal_from`: the byte of the journal where its Master began; by default, its end."""
        local = local_part(ledger)
        self._base = base
        self._ledger = local
        self._cards = cards
        self._watch: CardWatch | None = None
        self._name = hashlib.sha256(base.root.encode()).hexdigest()[:12]
        before = local.notes.activity(self._name).get(os.geteuid(), [None])
        self.meter = ActivityMeter(before[0])
        self.projects = dict(local.notes.projects(self._name).get(os.geteuid(), [{}])[0])
        self._project_of: dict[str, str] = {}
        self._gpus_of: dict[str, int] = {}
        # What an earlier Master has seen is counted already.
        self._offset = journal_size(base) if journal_from is None else journal_from
        self._written_at = 0.0
        self._curves = CurveRecorder(LocalFiles(), base)
        self._idle_look_at = 0.0
        self._changed = False

    def step(self, now: float) -> None:
        """Look once; `now` is wall clock."""
        self._ledger.tidy()
        held = self._ledger.holders(squatters=False)
        if held:
            cards = self._look()
            mine = [entry for entry in held if entry.uid == os.geteuid()]
            self.meter.step(now, mine, cards)
            self._curves.add(now, cards)
            self._changed = True
        else:
            # Also after the clock was set back.
            if not 0.0 < self._idle_look_at - now <= NO_CARDS_S:
                cards = self._look()
                self._curves.add(now, cards)
                self._idle_look_at = now + (IDLE_S if cards else NO_CARDS_S)
            if self._watch is not None:
                self._watch.close()  # nobody holds a GPU: no process has to wait for us
                self._watch = None
        self._read_journal()
        if self._changed and not 0.0 <= now - self._written_at < WRITE_S:
            self.write(now)

    def write(self, now: float) -> None:
        """Write down what was seen."""
        first = int(now // HOUR_S) - KEPT_HOURS
        self.projects = {key: row for key, row in self.projects.items() if key[0] >= first}
        self._ledger.notes.write_activity(self._name, self.meter.seen, self.projects)
        self._written_at, self._changed = now, False

    def close(self) -> None:
        """Write what is not written yet, and end the process that asks the driver."""
        if self._changed:
            with contextlib.suppress(OSError):
                self.write(time.time())
        if self._watch is not None:
            self._watch.close()

    def _look(self) -> list[Card]:
        if self._cards is not None:
            return self._cards()
        if self._watch is None:
            self._watch = CardWatch()
        with contextlib.suppress(PostroomError):
            return self._watch.cards()
        return []

    def _read_journal(self) -> None:
        """Count the jobs that have ended since the last step."""
        try:
            with open(self._base.events, "rb") as file:
                file.seek(self._offset if self._offset <= journal_size(self._base) else 0)
                text = file.read(_MOST_AT_ONCE)
                whole = text[: text.rfind(b"\n") + 1]
                self._offset = file.tell() - len(text) + len(whole)
        except OSError:
            return
        self._gpus_of.clear()  # an agent may have been started with others
        for line in whole.splitlines():
            if b'"event":"done"' in line:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._count(json.loads(line))

    def _count(self, said: dict[str, object]) -> None:
        agent, run = str(said["agent"]), str(said["run"])
        project = self._project(run)
        if not agent or not project:
            return  # it was cancelled before it ran, or is no job of the queue
        at, jobs = float(str(said["at"])), int(str(said["count"]))
        failed = int(str(said["failed"]))
        gpu_s = float(str(said["seconds"])) * self._gpus(agent)
        self.meter.count_jobs(at, jobs, failed)
        key = int(at // HOUR_S), project
        before = self.projects.get(key, (0, 0, 0.0))
        self.projects[key] = before[0] + jobs, before[1] + failed, before[2] + gpu_s
        self._changed = True

    def _project(self, run: str) -> str:
        if run not in self._project_of:
            try:
                info = read_run_info(LocalFiles(), self._base, run)
            except (BadFileError, OSError):
                return ""
            self._project_of[run] = (info.project or "default") if info.queue else ""
        return self._project_of[run]

    def _gpus(self, agent: str) -> int:
        if agent not in self._gpus_of:
            with contextlib.suppress(OSError):
                info = read_agent_info(LocalFiles(), self._base, agent)
                self._gpus_of[agent] = 1 if info is None else info.gpus
        return self._gpus_of.get(agent, 1)


def journal_size(base: Base) -> int:
    """How many bytes the journal of a base has; 0 if there is none."""
    try:
        return os.stat(base.events).st_size
    except OSError:
        return 0


def record_in_background(
    base: Base, stopped: threading.Event, *, acting: Callable[[], bool]
) -> threading.Thread:
    """Record in a thread while its Master is `acting`, until `stopped` is set."""

    began: int | None = journal_size(base)

    def record() -> None:
        nonlocal began
        recorder: UseRecorder | None = None
        while not stopped.wait(LOOK_S):
            if acting():
                with contextlib.suppress(OSError, PostroomError):
                    recorder = recorder or UseRecorder(base, open_ledger(), journal_from=began)
                    recorder.step(time.time())
            elif recorder is not None:
                recorder.close()
                recorder = began = None
        if recorder is not None:
            recorder.close()

    thread = threading.Thread(target=record, name="use recorder", daemon=True)
    thread.start()
    return thread
