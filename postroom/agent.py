"""The Master's view of one session."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from .base import Base
from .errors import BadFileError
from .files import Box, Files
from .mailbox import Letter, is_plain_name
from .schedule import Seat

CARD_LIMIT = 64 << 10
# Of the letters that a session understands. A session may be older than the Master: it runs for
# weeks, and the package is updated meanwhile.
VERSION = 2


@dataclass(frozen=True)
class AgentCard:
    """What a session says of itself in `agent_pool/<id>.json`."""

    agent: str
    gpu: str  # the card's uuid, or "cpu"
    gpu_name: str
    host: str
    boot_id: str
    pid: int  # of the guardian
    started: int  # the guardian's start time in clock ticks, which makes its pid unique
    since: float  # wall clock
    gpus: int = 1  # how many cards; 0 on the CPU
    memory_mib: int = 0  # of the smallest of them
    cgroup: str = ""  # where its commands are; "": in no group of their own
    version: int = VERSION

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> AgentCard:
        """Read a card; a bad one raises BadFileError."""
        try:
            fields: Any = json.loads(data)
            return cls(**fields)
        except (ValueError, TypeError) as error:
            raise BadFileError(path, f"is not a session's card: {error}") from None


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
    seat: Seat = field(default_factory=Seat)
    outdated: bool = False  # it does not understand our letters

    @property
    def idle(self) -> bool:
        """Whether its mailbox is ours to fill."""
        return self.letter is None


def list_agents(files: Files, base: Base) -> list[str]:
    """Every agent that has a mailbox, in the order of their numbers."""
    names = [n.removesuffix(".POOL") for n in files.names(base.agent_pool) if n.endswith(".POOL")]
    return sorted((n for n in names if is_plain_name(n)), key=lambda n: (len(n), n))


def read_agent_card(files: Files, base: Base, agent_id: str) -> AgentCard | None:
    """What a session says of itself; None when it says nothing readable."""
    path = base.agent_card(agent_id)
    try:
        return AgentCard.decode(path, files.read(path, CARD_LIMIT))
    except (FileNotFoundError, BadFileError):
        return None
