"""The keeper: one process of a base that starts and ends its pilots, and looks at their engines.

It holds `pilots/keeper.lock`. `postroom pilots add` starts it; the Master of a standing queue
starts it again when it is dead. It talks to no pilot: a stand-in serves its own, and outlives the
keeper. If a stand-in was killed, the keeper tells the engine to cancel its pilot, and until the
engine has said yes, that pilot counts as living.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

from ..errors import BadFileError, OtherVersionError, PostroomError
from ..store.base import Base, open_base
from ..store.files import LocalFiles
from ..store.journal import Journal
from ..store.pilot_records import (
    PilotGroup,
    PilotGroups,
    PilotLook,
    PilotRecord,
    PilotState,
    change_groups,
    read_demand,
    read_groups,
    read_pilots,
    write_look,
    write_pilot,
)
from ..store.records import to_fields
from ..store.wanted_agents import read_wanted
from ..system.own_python import start_detached
from ..system.process_tree import holders
from .engine import Engine, EngineError, Sighting, open_engine
from .scaling import plan

# How often to decide, and how often to look at an engine.
STEP_S = 0.5
LOOK_S = 3.0
# A stand-in has its lock after this long, or is dead.
STARTING_S = 20.0
# A temporary group is over after so long without a Master.
ALONE_S = 15.0
# How many pilots that have ended are remembered.
REMEMBER = 100


class PilotKeeper:
    """Keeps the pilots of one base; `step` is one round."""

    def __init__(self, base: Base, *, engines: dict[str, Engine] | None = None) -> None:
        """`engines`, by group: for tests, instead of those that the groups name."""
        self._files = LocalFiles()
        self._base = base
        self._journal = Journal(base, "pilots")
        self._given = engines
        self._token = hashlib.sha256(f"{socket.gethostname()} {base.root}".encode()).hexdigest()[:8]
        self._surplus_since: dict[str, float] = {}
        self._told: dict[str, int] = {}  # pilots: how often they were told to stop
        self._look_at = 0.0
        self._seen: dict[str, Sighting] = {}
        self._errors: dict[str, str] = {}
        self._alone_since: float | None = None  # no Master acts
        self._started: dict[str, float] = {}
        self._processes: list[subprocess.Popen[bytes]] = []  # stand-ins: to be reaped

    def step(self, now: float) -> None:
        """One round: bury the dead, look at engines, start and end pilots."""
        try:
            groups = read_groups(self._files, self._base)
        except (BadFileError, OtherVersionError) as error:
            self._errors = {"": str(error)}
            return
        self._processes = [process for process in self._processes if process.poll() is None]
        pilots = read_pilots(self._files, self._base)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(groups, pilots)
            self._forget_old(pilots)
        demand = read_demand(self._files, self._base, time.time())
        for pilot in pilots.values():
            if pilot.state is not PilotState.ENDED and not self._lives(pilot, now):
                pilots[pilot.pilot] = self._bury(groups, pilot)
        self._end_temporary(groups, pilots, now)
        up = self._is_up()
        for name, group in groups.groups.items():
            mine = [pilot for pilot in pilots.values() if pilot.group == name]
            if group.drained or not up:
                for pilot in mine:
                    self._tell(pilot, 2 if group.stopped else 1)
            if up:
                self._scale(name, group, mine, demand.get(name, 0))
        for pilot in pilots.values():
            if pilot.group not in groups.groups:  # it was removed
                self._tell(pilot, 1)

    def is_done(self) -> bool:
        """Whether there is nothing left to keep."""
        with contextlib.suppress(BadFileError, OtherVersionError):
            if not read_groups(self._files, self._base).groups:
                pilots = read_pilots(self._files, self._base).values()
                return all(pilot.state is PilotState.ENDED for pilot in pilots)
        return False

    def _end_temporary(
        self, groups: PilotGroups, pilots: dict[str, PilotRecord], now: float
    ) -> None:
        """Drain groups of a program that was killed; forget those that are drained and empty."""
        mine = {name: group for name, group in groups.groups.items() if group.temporary}
        if not mine:
            return
        lock = self._files.try_lock(self._base.master_lock, shared=True)
        if lock is None:
            self._alone_since = None
        else:
            lock.release()
            self._alone_since = now if self._alone_since is None else self._alone_since
        alone = self._alone_since is not None and now >= self._alone_since + ALONE_S
        living = {one.group for one in pilots.values() if one.state is not PilotState.ENDED}
        over = [name for name, group in mine.items() if group.drained and name not in living]
        if not over and not (alone and any(not group.drained for group in mine.values())):
            return

        def end(latest: PilotGroups) -> None:
            for name in mine:
                group = latest.groups.get(name)
                if group is not None and group.drained and name in over:
                    del latest.groups[name]
                elif group is not None and alone:
                    group.drained = True

        change_groups(self._files, self._base, end)

    def _engine(self, name: str, group: PilotGroup) -> Engine:
        return self._given[name] if self._given is not None else open_engine(group)

    def _is_up(self) -> bool:
        """Whether `postroom down` is not in force."""
        with contextlib.suppress(BadFileError, OtherVersionError, OSError):
            wanted = read_wanted(self._files, self._base)
            return wanted is None or wanted.up
        return True

    def _look(self, groups: PilotGroups, pilots: dict[str, PilotRecord]) -> None:
        """Ask each engine about all its pilots at once; one that fails says nothing."""
        self._errors = {}
        for name, group in groups.groups.items():
            names = {
                pilot.job_name: pilot.pilot
                for pilot in pilots.values()
                if pilot.group == name and pilot.state is not PilotState.ENDED
            }
            try:
                seen = self._engine(name, group).look(set(names)) if names else {}
                self._seen.update({names[job]: sighting for job, sighting in seen.items()})
            except EngineError as error:
                self._errors[name] = str(error)
        living = {p.pilot for p in pilots.values() if p.state is not PilotState.ENDED}
        self._seen = {pilot: seen for pilot, seen in self._seen.items() if pilot in living}
        said = PilotLook(
            time.time(),
            self._errors,
            {
                pilot: {
                    "why": seen.why,
                    "node": seen.node,
                    "engine_id": seen.engine_id,
                    "state": seen.fate.value,
                }
                for pilot, seen in self._seen.items()
            },
        )
        with contextlib.suppress(OSError):
            write_look(self._files, self._base, said)

    def _forget_old(self, pilots: dict[str, PilotRecord]) -> None:
        ended = [pilot for pilot in pilots.values() if pilot.state is PilotState.ENDED]
        for pilot in sorted(ended, key=lambda one: one.ended_at)[:-REMEMBER]:
            self._files.remove(self._base.pilot_record(pilot.pilot))
            self._files.remove(self._base.pilot_log(pilot.pilot))
            for path in (self._base.agent_lock, self._base.agent_tree, self._base.in_hand):
                self._files.remove(path(pilot.pilot))
            del pilots[pilot.pilot]

    # One pilot

    def _lives(self, pilot: PilotRecord, now: float) -> bool:
        """Whether its stand-in lives: that holds the agent's lock, or will in a moment."""
        if now < self._started.get(pilot.pilot, now - STARTING_S - 1) + STARTING_S:
            if not holders(self._base.agent_lock(pilot.pilot)):
                return True
            del self._started[pilot.pilot]
        lock = self._files.try_lock(self._base.agent_lock(pilot.pilot), shared=True)
        if lock is None:
            return True
        lock.release()
        return False

    def _bury(self, groups: PilotGroups, pilot: PilotRecord) -> PilotRecord:
        """Its stand-in is dead: have the engine end the pilot; until then it counts as living."""
        group = groups.groups.get(pilot.group) or PilotGroup(engine=pilot.engine)
        try:
            self._engine(pilot.group, group).cancel(pilot.job_name, pilot.engine_id)
        except EngineError as error:
            self._errors[pilot.group] = str(error)
            return pilot
        # The holder of the lock writes it; a stand-in that ended in this moment has said why.
        lock = self._files.try_lock(self._base.agent_lock(pilot.pilot))
        if lock is None:
            return pilot
        try:
            latest = read_pilots(self._files, self._base).get(pilot.pilot, pilot)
            if latest.state is not PilotState.ENDED:
                why = "its stand-in died"
                latest = replace(latest, state=PilotState.ENDED, why=why, ended_at=time.time())
                write_pilot(self._files, self._base, latest)
                self._journal.log("warning", f"pilot {pilot.pilot} ended: {why}")
            return latest
        finally:
            lock.release()

    def _tell(self, pilot: PilotRecord, times: int) -> None:
        """Tell a stand-in to stop: once after its job, twice now."""
        if pilot.state is PilotState.ENDED:
            self._told.pop(pilot.pilot, None)
            return
        while self._told.get(pilot.pilot, 0) < times:
            pids = holders(self._base.agent_lock(pilot.pilot))
            if not pids:
                return  # it has just started; the next round tells it
            self._told[pilot.pilot] = self._told.get(pilot.pilot, 0) + 1
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            time.sleep(0.02)  # two signals at once would be one

    # How many

    def _scale(self, name: str, group: PilotGroup, pilots: list[PilotRecord], waiting: int) -> None:
        now = time.time()
        decided = plan(group, pilots, waiting, now, self._surplus_since.get(name))
        if decided.surplus:
            self._surplus_since.setdefault(name, now)
        else:
            self._surplus_since.pop(name, None)
        if decided.pause:
            words = f"three pilots in a row died before they were ready: {decided.pause}"

            def pause(groups: PilotGroups) -> None:
                if name in groups.groups:
                    groups.groups[name].paused = words

            change_groups(self._files, self._base, pause)
            self._journal.log("error", f"pilots {name} are paused: {words}")
            return
        by_id = {pilot.pilot: pilot for pilot in pilots}
        for pilot in decided.cancel:
            self._tell(by_id[pilot], 2)
        if decided.start:
            kept = sum(pilot.state is not PilotState.ENDED for pilot in pilots)
            self._start(name, group, decided.start, kept)

    def _start(self, name: str, group: PilotGroup, count: int, kept: int) -> None:
        last = 0

        def number(groups: PilotGroups) -> None:
            nonlocal last
            groups.numbered += count
            last = groups.numbered

        change_groups(self._files, self._base, number)
        for place, serial in enumerate(range(last - count + 1, last + 1)):
            pilot = f"{name}-{serial}"
            record = PilotRecord(
                pilot,
                name,
                group.engine,
                PilotState.SUBMITTED,
                f"postroom-{self._token}-{pilot}",
                time.time(),
            )
            # Before its process: a pilot that is not on record could be one too many.
            write_pilot(self._files, self._base, record)
            # Those that the group is to have at least do not end when they are idle.
            idle_s = None if kept + place < group.least else group.idle_s
            words = [record.encode().decode(), json.dumps(to_fields(group)), json.dumps(idle_s)]
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            log = os.open(self._base.pilot_log(pilot), flags, 0o600)
            try:
                process = start_detached(
                    "postroom.pilots.stand_in", self._base.root, *words, log=log
                )
                self._processes.append(process)
                self._started[pilot] = time.monotonic()
            except OSError as error:
                self._journal.log("error", f"cannot start pilot {pilot}: {error}")
            finally:
                os.close(log)


def main(arguments: list[str]) -> int:
    """Keep the pilots of a base until it has none."""
    base = open_base(arguments[0])
    files = LocalFiles()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = PilotKeeper(base)
    done = False
    # Asked once more without the lock: who adds a group first writes it, then looks at the lock.
    while not (done and keeper.is_done()):
        lock = files.try_lock(base.pilot_keeper_lock)
        if lock is None:
            return 0  # another keeper was faster
        try:
            while lock.is_at(base.pilot_keeper_lock) and not (done := keeper.is_done()):
                try:
                    keeper.step(time.monotonic())
                except (OSError, PostroomError) as error:
                    print(f"keeper: {error}", file=sys.stderr, flush=True)
                time.sleep(STEP_S)
            if not done:
                return 0  # the base was moved away
        finally:
            lock.release()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
