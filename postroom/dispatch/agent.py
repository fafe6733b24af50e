"""One session as the acting Master knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..store.files import Box
from ..store.mailbox import Letter
from .run_queue import Capacity


@dataclass
class Agent:
    """One session as the acting Master knows it: idle, or out with a letter."""

    agent_id: str
    box: Box
    letter: Letter | None = None
    size: int = 0  # of the mailbox when it was last read: it grows when the letter is shortened
    doubtful: bool = False  # writing the letter failed: half of it may lie there, or all
    reached: int = 0  # the first job of the letter whose result has not been seen
    answer: str = ""  # where that result will lie; "": it is looked for behind the turn
    look_at: float = 0.0  # when to look for results in the middle of a letter
    probe_at: float = 0.0  # when to see whether it lives
    seat: Capacity = field(default_factory=Capacity)
    outdated: bool = False  # it does not understand our letters

    @property
    def idle(self) -> bool:
        """Whether its mailbox is ours to fill."""
        return self.letter is None
