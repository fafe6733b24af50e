"""The sessions of a batch: one for each slot, started when missing, dismissed when not wanted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import PostroomError
from ..gpus.cards.gpu_list import SlotSpec
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.snapshot import living_agents
from ..system.fork import ForkedProcess
from ..system.process_tree import holders
from .forked_worker import fork_session
from .launch import new_session_log, session_log, spawn_session

if TYPE_CHECKING:
    from ..gpus.cards.inventory import Card

# A slot whose session ends so often by itself is given up.
MOST_FAILURES = 3
TEND_S = 0.25
# A session that does not serve by then has something to wait for.
SILENT_S = 2.0

Session = subprocess.Popen[bytes] | ForkedProcess


class CrewError(PostroomError):
    """No slot can be served."""


class Crew:
    """Keeps a session alive in each slot while the batch runs."""

    def __init__(
        self,
        base: Base,
        *,
        say: Callable[[str], None],
        scheduling: dict[str, Any] | None = None,
    ) -> None:
        self._base = base
        self.say = say
        # Of every session, as its options are called; by default it keeps nothing warm.
        self._scheduling: dict[str, Any] = (
            {"wait": True, "preload": ""} if scheduling is None else scheduling
        )
        self._files = LocalFiles()
        self._processes: dict[str, Session] = {}
        self._leaving: list[Session] = []
        self._failures: dict[str, int] = {}
        self._silent: dict[str, float] = {}  # new sessions, and when they should be heard of
        self._tend_at = 0.0
        self._hired = 0  # sessions that share cards
        self.places: list[SlotSpec] = []

    def want(self, places: Sequence[SlotSpec]) -> None:
        """Serve these slots and no others; a slot that is removed finishes its job first."""
        wanted = {place.agent for place in places}
        for place in self.places:
            if place.agent not in wanted:
                process = self._processes.pop(place.agent, None)
                if process is not None and process.poll() is None:
                    process.terminate()
                    self._leaving.append(process)
        self.places = list(places)
        self._failures.clear()
        self._tend_at = 0.0
        self.tend(time.monotonic())

    def grow(self, cards: Sequence[Card], count: int) -> None:
        """Have so many sessions that share these cards, at least: a job in hand each."""
        gpu = ",".join(str(card.index) for card in cards)
        missing = count - len(self.places)
        for _ in range(missing if gpu else 0):
            self._hired += 1
            self.places.append(SlotSpec(f"s{self._hired}", gpu, share=True))
        if missing > 0:
            self._tend_at = 0.0

    def tend(self, now: float) -> None:
        """Start what is missing: at first all, later what has died."""
        if now < self._tend_at:
            return
        self._tend_at = now + TEND_S
        for place in list(self.places):
            process = self._processes.get(place.agent)
            if process is not None and process.poll() is None:
                self._tell_waiting(place, now)
                continue
            if process is not None:
                del self._processes[place.agent]
                if process.returncode and not self._go_on(place):
                    continue
            if living_agents(self._files, self._base, place.agent) is None:
                self._processes[place.agent] = self._start(place)
                if not place.share:  # such a session waits for nothing; its jobs do
                    self._silent[place.agent] = now + SILENT_S

    def _tell_waiting(self, place: SlotSpec, now: float) -> None:
        """Say once what a slot waits for that does not serve: nobody should have to guess."""
        if now < self._silent.get(place.agent, now + 1):
            return
        del self._silent[place.agent]
        words = self.last_words(place.agent)
        if not self._files.exists(self._base.mailbox(place.agent)) and "waiting for" in words:
            self.say(f"slot {place.agent} does not serve yet: {words}")

    def _go_on(self, place: SlotSpec) -> bool:
        """Count a failure; a slot that has too many is given up, and the last one with an error."""
        failures = self._failures[place.agent] = self._failures.get(place.agent, 0) + 1
        if failures < MOST_FAILURES:
            return True
        self.places.remove(place)
        words = self.last_words(place.agent)
        if not self.places:
            raise CrewError(f"no slot can be served: {words}")
        self.say(f"slot {place.agent} is given up: {words}")
        return False

    def _start(self, place: SlotSpec) -> Session:
        scheduling = {**self._scheduling, "agent": place.agent, "while_pid": os.getpid()}
        if place.share:
            scheduling["share"] = True
        with new_session_log(self._base, place.agent) as log:
            # All that a session needs is loaded here already: a fork saves it a tenth of a second.
            # Only a process of one thread may; a feed has one of its own, and so has numpy.
            if len(os.listdir("/proc/self/task")) == 1:
                return fork_session(place.gpu, self._base.root, log, **scheduling)
            return spawn_session([place.gpu, self._base.root, *_words(scheduling)], log)

    def last_words(self, agent: str) -> str:
        """What a session said last of all."""
        with contextlib.suppress(OSError), open(session_log(self._base, agent)) as file:
            lines = [line.strip() for line in file if line.strip()]
            if lines:
                return lines[-1]
        return "it said nothing"

    def dismiss(self) -> None:
        """Have every session of ours end; with nothing in hand, they do so at once."""
        for process in self._all():
            process.terminate()

    def stop(self) -> None:
        """End every session of ours now, with the commands in their hands."""
        for _ in range(2):
            for process in self._all():
                process.terminate()
            time.sleep(0.05)  # two signals at once would be one
        try:
            self.wait()
            self._end_survivors()
        except KeyboardInterrupt:
            for process in self._all():
                process.terminate()  # without grace
            self.wait()
            self._end_survivors()

    def _end_survivors(self) -> None:
        """End commands that had outlived an earlier call, and were waited for by this one."""
        for place in self.places:
            if living_agents(self._files, self._base, place.agent) is not None:
                continue  # of another call, which is at work
            told: set[int] = set()
            while minders := holders(self._base.agent_lock(place.agent)):
                for pid in set(minders) - told:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                    told.add(pid)
                time.sleep(0.02)

    def wait(self) -> None:
        """Wait until every session of ours has ended."""
        for process in self._all():
            process.wait()

    def _all(self) -> list[Session]:
        everyone = [*self._processes.values(), *self._leaving]
        return [process for process in everyone if process.poll() is None]


def turn_signals_into_interrupts() -> None:
    """Let SIGTERM and the end of the terminal stop a batch as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _words(scheduling: dict[str, Any]) -> list[str]:
    """What is wished of a session, as it is written on its command line."""
    words: list[str] = []
    for name, value in scheduling.items():
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    return words
