"""What a session says of itself in `agent_pool/<id>.json`, and which sessions have a mailbox."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import BadFileError
from .base import Base
from .files import Files
from .mailbox import is_plain_name

INFO_LIMIT = 64 << 10
# Of the letters that a session understands. A session may be older than the Master: it runs for
# weeks, and the package is updated meanwhile.
VERSION = 2


@dataclass(frozen=True)
class AgentInfo:
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
    def decode(cls, path: str, data: bytes) -> AgentInfo:
        """Read a card; a bad one raises BadFileError."""
        try:
            fields: Any = json.loads(data)
            return cls(**fields)
        except (ValueError, TypeError) as error:
            raise BadFileError(path, f"is not a session's card: {error}") from None


def list_agents(files: Files, base: Base) -> list[str]:
    """Every agent that has a mailbox, in the order of their numbers."""
    names = [n.removesuffix(".POOL") for n in files.names(base.agent_pool) if n.endswith(".POOL")]
    return sorted((n for n in names if is_plain_name(n)), key=lambda n: (len(n), n))


def read_agent_info(files: Files, base: Base, agent_id: str) -> AgentInfo | None:
    """What a session says of itself; None when it says nothing readable."""
    path = base.agent_info(agent_id)
    try:
        return AgentInfo.decode(path, files.read(path, INFO_LIMIT))
    except (FileNotFoundError, BadFileError):
        return None
