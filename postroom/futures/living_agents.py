"""Has pending futures fail, with the reason, where no agent has lived for a while."""

from __future__ import annotations

from ..errors import NoAgentsError
from ..store.base import Base
from ..store.snapshot import DEAD, snapshot

LOOK_S = 1.0
# A person, or a service, may be starting some.
PATIENCE_S = 60.0


class LivingAgents:
    """Looks whether anybody can run the jobs of a Master that starts no agents itself."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._look_at = 0.0
        self._alone_since: float | None = None

    def step(self, now: float, pending: int) -> None:
        """Raise NoAgentsError if no agent has lived for too long while jobs were pending."""
        if not pending or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        agents = snapshot(self._base, runs=False).agents
        if any(agent.state not in DEAD for agent in agents):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= PATIENCE_S:
            root = self._base.root
            raise NoAgentsError(
                f"no agent has been running on {root} for {PATIENCE_S:g} s, and nobody could run "
                f"what was submitted: start some with `postroom agents start 1 {root}`, or with "
                "Master(base, agents=1), and submit it again"
            )

    def job_ended(self) -> None:
        """A job has an outcome."""
        self._alone_since = None

    def close(self, *, now: bool) -> None:
        """There is nothing to end."""
