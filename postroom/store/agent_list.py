"""The agents of a base as a list of their ids, which a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Iterable

from ..text.table import html_table
from .base import Base
from .snapshot import snapshot


class AgentList(list[str]):
    """The ids of some agents."""

    def __init__(self, base: Base, agents: Iterable[str]) -> None:
        super().__init__(agents)
        self._base = base

    def _repr_html_(self) -> str:
        """Each agent as it is now: its GPU, its state, its process, how many jobs it has done."""
        rows = [["agent", "GPU", "state", "pid", "jobs done"]]
        for agent in snapshot(self._base, runs=False).agents:
            if agent.agent in self:
                done, pid = str(agent.done), str(agent.pid)
                rows.append([agent.agent, agent.gpu_name, agent.state, pid, done])
        return html_table(rows)
