"""Says why no job of a run can run, after a few seconds, and says when jobs run again."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import BadFileError, StalledError
from ..store.base import Base
from ..store.files import Files
from ..store.pilot_records import PilotState, read_demand, read_groups, read_pilots
from ..store.requests import no_orders, read_orders
from ..store.snapshot import DEAD, acting_master, snapshot
from ..system.oom_kills import OOM_MESSAGE
from ..system.processes import is_stopped
from ..system.shortage import full_disk

# Agents that are just starting, or a disk that is freed at once, are not worth a line.
SAY_AFTER_S = 3.0


class Stall:
    """Remembers since when nothing can happen, and what was said of it."""

    def __init__(self, say: Callable[[str], None], *, raise_after_s: float | None = None) -> None:
        self._say = say
        self._raise_after_s = raise_after_s
        self._since: float | None = None
        self.said = ""  # the reason that was said last; "": nothing is in the way

    def look(self, now: float, reason: str) -> None:
        """Take in why nothing can happen now; "": something can."""
        if not reason:
            if self.said:
                self._say("it goes on")
            self._since, self.said = None, ""
            return
        if self._since is None:
            self._since = now
        waited_s = now - self._since
        if self._raise_after_s is not None and waited_s >= self._raise_after_s:
            raise StalledError(reason)
        if waited_s >= SAY_AFTER_S and reason != self.said:
            self._say(f"waiting: {reason}")
            self.said = reason


def find_obstacle(files: Files, base: Base, *, acting: bool) -> str:
    """Why no job of a base can run now, and what to do; "" where one could."""
    master = None if acting else acting_master(files, base)
    if master is not None and is_stopped(master.process):
        return (
            f"the scheduler of {base.root} (pid {master.pid}) is stopped, and no other may take "
            f"over: continue it (`kill -CONT {master.pid}`, or `fg` in its terminal), or end it"
        )
    try:
        read_orders(files, base)
    except BadFileError as error:
        return no_orders(error)
    agents = snapshot(base, files=files, runs=False).agents
    living = [agent.state for agent in agents if agent.state not in DEAD]
    if not living and (pilots := about_pilots(files, base, time.time())):
        return pilots
    if not living:
        return (
            f"no agent is running on {base.root}: "
            f"start one with `postroom agents start 1 {base.root}`"
        )
    if full := full_disk(base.root):
        return full
    if all(state == "blocked" for state in living):
        return f"the agents of {base.root} cannot write their results: its log says why"
    if all(state == "waiting for its GPU" for state in living):
        note = next(agent.note for agent in agents if agent.note)
        return f"the agents of {base.root} wait for their GPUs: {note}"
    if all(state == "out of memory" for state in living):
        return f"the agents of {base.root} pause, and go on by themselves: {OOM_MESSAGE}"
    return ""


def about_pilots(files: Files, base: Base, now: float, where: str = "") -> str:
    """Why no pilot serves, if the base is to have some; `where`: of that engine."""
    try:
        groups = read_groups(files, base).groups
        groups = {name: one for name, one in groups.items() if where in ("", one.engine)}
    except BadFileError as error:
        return f"no pilot is started: {error}"
    paused = [f"{name}: {group.paused}" for name, group in groups.items() if group.paused]
    if paused:
        return f"pilots are paused ({paused[0]}); then: postroom pilots resume {base.root}"
    if not groups or all(group.drained for group in groups.values()):
        drained = f"pilots are drained; start them again: postroom pilots resume {base.root}"
        return drained if groups and where else ""
    pilots = read_pilots(files, base).values()
    states = [pilot.state for pilot in pilots if pilot.group in groups]
    coming = sum(state in (PilotState.SUBMITTED, PilotState.STARTING) for state in states)
    if coming:
        words = "1 pilot is on its way" if coming == 1 else f"{coming} pilots are on their way"
        return f"{words}; see: postroom pilots list {base.root}"
    if any(read_demand(files, base, now).values()):
        return f"no pilot lives yet, or again; see: postroom pilots list {base.root}"
    return (
        "no pilots of this base would have what is asked for (GPUs, memory, time, --where); see: "
        f"postroom pilots list {base.root}"
    )
