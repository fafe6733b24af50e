"""Calls agents that have given their GPU back, when there is work for them.

    session:        gives its GPU back, then makes <id>.REST, empty
    acting Master:  writes a word into it while jobs wait that this agent could run, else empties it
    session:        waits in the ledger's line for its GPU as long as the word is there; with its
                    GPU, it removes <id>.REST and starts its worker, which puts up its mailbox

A session without its GPU has no mailbox, so no letter can reach it. A call is no promise of a
letter: who comes and finds nothing rests again. A call that a dead Master left wakes a session
once, since the session removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..errors import BadFileError
from ..store.agents import PROTOCOL, read_agent_info
from ..store.base import Base
from ..store.files import Box, Files
from ..store.journal import Journal
from .run_queue import Capacity

CALL = b"come"
# An agent that was called is expected within this time. After it, its GPU is taken to be in use,
# and another agent is called for the same job.
COMING_S = 1.0
# ... and with its GPU in hand, its worker should be ready within this time.
ARRIVAL_S = 30.0


@dataclass
class RestingAgent:
    """One agent that has no GPU now."""

    box: Box
    capacity: Capacity
    called_at: float | None = None
    probe_at: float = 0.0  # when to check whether it is alive


class RestingAgents:
    """The agents of a base that rest."""

    def __init__(self, files: Files, base: Base, journal: Journal) -> None:
        self._files = files
        self._base = base
        self._journal = journal
        self.agents: dict[str, RestingAgent] = {}
        self._arriving: dict[str, float] = {}  # have their GPU; until when to wait for them

    def see(self, resting: list[str], serving: Collection[str], now: float) -> None:
        """Take in which agents rest, and which have a mailbox."""
        for agent_id, known in list(self.agents.items()):
            if known.box.gone():
                if known.called_at is not None:
                    self._arriving[agent_id] = now + ARRIVAL_S
                self.forget(agent_id)
        for agent_id in resting:
            self._arriving.pop(agent_id, None)
            if agent_id not in self.agents:
                self._add(agent_id)
        self._arriving = {
            agent_id: until
            for agent_id, until in self._arriving.items()
            if agent_id not in serving and now < until
        }

    def _add(self, agent_id: str) -> None:
        info = read_agent_info(self._files, self._base, agent_id)
        if info is not None and info.protocol != PROTOCOL:
            return
        try:
            box = self._files.open_box(self._base.rest(agent_id))
        except BadFileError:
            return  # somebody's own file: no session hears a call there
        if box is not None:
            capacity = (
                Capacity(
                    info.gpus,
                    info.memory_mib,
                    gpu_name=info.gpu_name,
                    leaves_shares=info.kept and info.gpus > 0,
                )
                if info is not None
                else Capacity()
            )
            agent = RestingAgent(box, capacity)
            agent.called_at = 0.0 if box.size() else None  # by the Master before this one
            self.agents[agent_id] = agent

    def forget(self, agent_id: str) -> None:
        """It does not rest any more."""
        agent = self.agents.pop(agent_id, None)
        if agent is not None:
            agent.box.close()

    def call(self, now: float, jobs: int, can_use: Callable[[str, Capacity], bool]) -> None:
        """Call as many agents as there are waiting jobs, of those that could run one.

        Tell the others to stay where they are: a call that is not meant any more would make them
        take a GPU from somebody.
        """
        coming = len(self._arriving)
        for agent_id, agent in self.agents.items():
            wanted = jobs > 0 and can_use(agent_id, agent.capacity)
            try:
                if not wanted and agent.called_at is not None:
                    agent.box.clear()
                    agent.called_at = None
                elif wanted and agent.called_at is None and coming < jobs:
                    agent.box.write(CALL)
                    agent.called_at = now
                    self._journal.event("called", agent=agent_id)
            except OSError as error:
                self._journal.log("error", f"cannot call agent {agent_id}: {error.strerror}")
                return
            if agent.called_at is not None and now < agent.called_at + COMING_S:
                coming += 1
