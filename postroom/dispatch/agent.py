"""One session as the acting Master knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..store.files import Box
from ..store.mailbox import Letter
from .run_queue import Capacity


@dataclass
class Agent:
    """One session as the acting Master knows it: idle, or with a letter."""

    agent_id: str
    box: Box
    letter: Letter | None = None
    size: int = 0  # of the mailbox when it was last read: it grows when the letter is shortened
    doubtful: bool = False  # writing the letter failed: the mailbox may hold half of it, or all
    reached: int = 0  # the first job of the letter whose result has not been seen
    sent_at: float = 0.0  # when its letter was sent, or found
    answer: str = ""  # the path of that result; "": wait until the mailbox is empty
    look_at: float = 0.0  # when to look for results in the middle of a letter
    probe_at: float = 0.0  # when to check whether it is alive
    capacity: Capacity = field(default_factory=Capacity)
    until: float = 0.0  # when somebody's reservation of its GPU begins; 0: nobody has reserved it
    ends_at: float = 0.0  # when its engine will end it, wall clock; 0: not known
    stands_in: bool = False  # for a pilot: no job runs in its process
    orphaned: bool = False  # it is dead, but processes of its job go on where we cannot end them
    waits: bool = False  # its job waits for a part of a GPU
    outdated: bool = False  # it understands another version of letters

    @property
    def idle(self) -> bool:
        """Whether its mailbox is ours to fill."""
        return self.letter is None
