"""Keeps the agents of a base alive: starts those that are wanted and missing, with pauses.

Only the acting Master of a standing queue has an AgentStarter: a program that acts for a while
starts no sessions for others. As always, an agent lives while its lock is held: by a guardian, or
by the minder of a command that outlived its session. A session that is not wanted any more leaves
by itself (see `store.wanted_agents`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import BadFileError
from ..gpus.cards.gpu_list import parse_gpus
from ..store.agents import read_agent_info
from ..store.base import Base
from ..store.files import Files
from ..store.journal import Journal
from ..store.requests import Request, RequestVerb
from ..store.wanted_agents import WantedAgents, read_wanted, write_wanted
from .shared_agents import SharedAgents, shared_gpus

# How often to look, and how long a session has to take its lock before the next is started.
STEP_S = 0.5
STARTING_S = 60.0
# How often to look whether the keeper of pilots lives.
PILOTS_S = 5.0
# The pause before a session that died is started again: twice as long each time, up to this.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
# A session that has lived this long was well.
WELL_S = 60.0

ABOUT_AGENTS = (RequestVerb.ADD, RequestVerb.REMOVE, RequestVerb.UP, RequestVerb.DOWN)


class SessionStarter(Protocol):
    """Starts and stops sessions for a Master that is asked to."""

    def start_kept(self, agent_id: str, gpus: str, *, among: int, share: bool = False) -> None:
        """Start a session that lives as long as the base wants it; `among`: how many there are."""

    def is_starting(self, agent_id: str) -> bool:
        """Whether a session that was started here runs, ready or not."""

    def last_words(self, agent_id: str) -> str:
        """The last line that a session printed."""

    def remove(self, agents: Collection[str], *, now: bool) -> None:
        """Stop sessions that nobody keeps, after their job or now."""

    def keep_pilots(self) -> None:
        """Start the keeper of the base's pilots, if it is dead."""


@dataclass
class _Trial:
    """What became of the sessions of one agent."""

    deaths: int = 0
    start_at: float = 0.0  # not before
    lives_since: float | None = None
    started_at: float | None = None  # a session was started, and is not known to have lived


class AgentStarter:
    """Starts the agents that are wanted and missing."""

    def __init__(
        self, files: Files, base: Base, journal: Journal, sessions: SessionStarter
    ) -> None:
        self._files = files
        self._base = base
        self._journal = journal
        self._sessions = sessions
        self._trials: dict[str, _Trial] = {}
        self._step_at = 0.0
        self._among = 0  # how many agents are to live
        self._unreadable = ""
        self._shared = SharedAgents()
        self._pilots_at = 0.0
        self.wanted: WantedAgents | None = None  # None: the file cannot be read, and nobody acts
        self._read()

    def _read(self) -> None:
        try:
            self.wanted = read_wanted(self._files, self._base) or WantedAgents()
            self._unreadable = ""
        except BadFileError as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                self._journal.log("error", f"no agent is started or removed: {error}")

    def carry_out(self, request: Request) -> bool:
        """Change which agents are wanted; False: that cannot be decided now."""
        if self.wanted is None:
            self._read()
        wanted = self.wanted
        if wanted is None:
            return False
        match request.verb:
            case RequestVerb.ADD:
                slots = parse_gpus(str(request.value), list)
                wanted.agents.update({slot.agent: slot.gpu for slot in slots})
            case RequestVerb.REMOVE:
                gone = set(wanted.agents) if request.everything else set(request.agents)
                wanted.agents = {a: gpu for a, gpu in wanted.agents.items() if a not in gone}
            case RequestVerb.UP | RequestVerb.DOWN:
                wanted.up = request.verb is RequestVerb.UP
                if request.value is not None:
                    wanted.yields = request.value == "yield"
        write_wanted(self._files, self._base, wanted)
        self._step_at = 0.0
        for trial in self._trials.values():
            trial.start_at = 0.0  # somebody is looking: try again at once
        return True

    def stop_others(self, agents: Collection[str], *, now: bool) -> None:
        """Stop those of the agents that nobody keeps: they were started by hand."""
        infos = {agent: read_agent_info(self._files, self._base, agent) for agent in agents}
        by_hand = [agent for agent, info in infos.items() if info is not None and not info.kept]
        if by_hand:
            self._sessions.remove(by_hand, now=now)

    def is_due(self, now: float) -> bool:
        """Whether the next step looks at all agents."""
        return now >= self._step_at

    def share(
        self,
        now: float,
        *,
        drained: Collection[str],
        ready: int,
        serving: Mapping[str, bool],
        waiting: Collection[str],
    ) -> None:
        """Want as many agents that share GPUs as there are jobs for; see `SharedAgents`."""
        wanted = self.wanted
        if wanted is None or not (ready or wanted.shared):
            return
        gpus = shared_gpus(wanted.agents, drained) if wanted.up else ""
        shared = self._shared.wanted(
            now, gpus, wanted.shared, ready=ready, serving=serving, waiting=waiting
        )
        if shared != wanted.shared:
            before, wanted.shared = wanted.shared, shared
            try:
                write_wanted(self._files, self._base, wanted)
            except OSError as error:
                wanted.shared = before
                self._journal.log("error", f"cannot share GPUs: {error.strerror}")

    def step(self, now: float) -> None:
        """Start what is missing."""
        if now < self._step_at:
            return
        self._step_at = now + STEP_S
        if self.wanted is None:
            self._read()
            return
        if now >= self._pilots_at:
            self._pilots_at = now + PILOTS_S
            if self._files.exists(self._base.pilot_groups):
                self._sessions.keep_pilots()
        self._among = len(self.wanted.living)
        for agent_id, gpus in self.wanted.living.items():
            self._start_if_missing(agent_id, gpus, self._trials.setdefault(agent_id, _Trial()), now)

    def _start_if_missing(self, agent_id: str, gpus: str, trial: _Trial, now: float) -> None:
        if self._lives(agent_id):
            trial.started_at = None
            if trial.lives_since is None:
                trial.lives_since = now
            elif now >= trial.lives_since + WELL_S:
                trial.deaths = 0
            return
        starting = trial.started_at is not None and now < trial.started_at + STARTING_S
        if starting and self._sessions.is_starting(agent_id):
            return
        if trial.lives_since is not None or trial.started_at is not None:
            self._note_death(agent_id, trial, now)
        if now >= trial.start_at:
            trial.started_at = now
            try:
                share = self.wanted is not None and agent_id in self.wanted.shared
                self._sessions.start_kept(agent_id, gpus, among=self._among, share=share)
            except OSError as error:
                self._journal.log("error", f"cannot start agent {agent_id}: {error}")

    def _note_death(self, agent_id: str, trial: _Trial, now: float) -> None:
        trial.lives_since = trial.started_at = None
        trial.deaths += 1
        pause_s = min(FIRST_PAUSE_S * 2 ** min(trial.deaths - 1, 20), LONGEST_PAUSE_S)
        trial.start_at = now + pause_s
        words = self._sessions.last_words(agent_id)
        self._journal.log(
            "warning", f"agent {agent_id} ended, and is started again in {pause_s:g} s: {words}"
        )

    def _lives(self, agent_id: str) -> bool:
        lock = self._files.try_lock(self._base.agent_lock(agent_id), shared=True)
        if lock is not None:
            lock.release()
        return lock is None
