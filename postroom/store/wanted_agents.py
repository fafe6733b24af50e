"""Which agents a base is to have: `control/agents.json`, written by the acting Master.

The acting Master of a standing queue starts the agents that are missing. A session that was started
so leaves by itself, after its job, when a file that it can read does not name it any more. So
nobody has to send a signal, and a Master that is killed in between has nothing to remember.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import BadFileError, OtherVersionError
from .base import Base
from .files import Files, replace_file
from .mailbox import is_plain_name
from .records import JsonRecord

LIMIT = 1 << 20


@dataclass
class WantedAgents(JsonRecord):
    """The agents that a base is to have."""

    CALLED: ClassVar[str] = "a list of the agents that are wanted"

    agents: dict[str, str] = field(default_factory=dict)  # agent: its GPUs, such as "0" or "0,1"
    up: bool = True  # False: none of them for now; see `postroom down`
    shared: dict[str, str] = field(default_factory=dict)  # those that share GPUs, while needed
    yields: bool = False  # they stop their running job when it is another user's turn

    def check(self) -> None:
        """Refuse ids that cannot be an agent's."""
        if not all(map(is_plain_name, (*self.agents, *self.shared))):
            raise ValueError("the name of an agent has only letters, digits, - and _")

    @property
    def living(self) -> dict[str, str]:
        """The agents that are to live now."""
        return {**self.agents, **self.shared} if self.up else {}


def read_wanted(files: Files, base: Base) -> WantedAgents | None:
    """The agents that are wanted; None: nobody has ever asked for any. Raises BadFileError."""
    try:
        return WantedAgents.decode(base.wanted_agents, files.read(base.wanted_agents, LIMIT))
    except FileNotFoundError:
        return None


def is_unwanted(files: Files, base: Base, agent_id: str) -> bool:
    """Whether the base says that it does not want an agent; what cannot be read says nothing."""
    with contextlib.suppress(BadFileError, OtherVersionError, OSError):
        wanted = read_wanted(files, base)
        return wanted is not None and agent_id not in wanted.living
    return False


def is_to_yield(files: Files, base: Base) -> bool:
    """Whether the agents that are wanted give their GPU away in the middle of a job."""
    with contextlib.suppress(BadFileError, OtherVersionError, OSError):
        wanted = read_wanted(files, base)
        return wanted is not None and wanted.yields
    return False


def write_wanted(files: Files, base: Base, wanted: WantedAgents) -> None:
    """Write which agents are wanted, so that it survives a power loss; only the acting Master."""
    replace_file(files, base.temporary(), base.wanted_agents, wanted.encode(), sync=True)
