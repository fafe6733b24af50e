"""Has sessions for calls: those that live, or its own, which are started as calls come."""

from __future__ import annotations

from collections.abc import Callable

from ..gpus.cards.gpu_list import SlotSpec
from ..session.sessions import Sessions
from ..store.base import Base


class SessionKeeper:
    """Uses the agents and pilots of a base; without any, it has its own, as many as calls need."""

    def __init__(
        self,
        base: Base,
        slots: Callable[[], list[SlotSpec]],
        *,
        always: bool,
        options: dict[str, object],
        say: Callable[[str], None],
    ) -> None:
        """`always`: have our own sessions, whether or not others live."""
        self._plan = slots
        self._always = always
        self._slots: list[SlotSpec] | None = None  # ours
        self._sessions = Sessions(base, say=say, options=options)

    def step(self, now: float, pending: int) -> None:
        """Start what is missing, and what has died."""
        if self._slots is None:
            if not self._always and self._sessions.others_serve():
                return
            self._slots = self._plan()
        kept = self._sessions.slots
        wanted = min(pending, len(self._slots))
        if wanted > len(kept):
            self._sessions.keep(self._slots[:wanted])
        else:
            self._sessions.step(now)

    def job_ended(self) -> None:
        """A job has an outcome: what failed before counts no more."""
        self._sessions.forgive()

    def close(self, *, now: bool) -> None:
        """End our sessions."""
        self._sessions.end(now=now)


def quiet(_: str) -> None:
    """Say nothing."""
