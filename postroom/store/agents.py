"""The files in which sessions and the acting Master describe themselves; who has a mailbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import BadFileError, OtherVersionError
from ..system.processes import Process, describe_pid
from .base import Base
from .files import Files
from .mailbox import is_plain_name
from .records import JsonRecord

INFO_LIMIT = 64 << 10
# The version of the mailbox protocol. A session may be older than the Master: it runs for weeks,
# and the package is updated meanwhile.
PROTOCOL = 2
MAILBOX, REST = ".POOL", ".REST"


class _NamesProcess:
    """A record that names a process: a guardian, or the acting Master's."""

    pid: int
    started: int
    boot_id: str
    pid_namespace: str
    host: str

    @property
    def process(self) -> Process:
        """The process."""
        return Process(self.pid, self.started, self.boot_id, self.pid_namespace)

    @property
    def pid_words(self) -> str:
        """Its pid, and where that is one."""
        return describe_pid(self.pid, self.pid_namespace, self.host)


@dataclass(frozen=True)
class AgentInfo(JsonRecord, _NamesProcess):
    """A session, as it describes itself in `agent_pool/<id>.json`."""

    CALLED: ClassVar[str] = "a session's info"

    agent: str
    gpu: str  # its uuid, or "cpu"
    gpu_name: str
    host: str
    boot_id: str
    pid: int  # of the guardian
    started: int  # the guardian's start time in clock ticks, which makes its pid unique
    since: float  # wall clock
    pid_namespace: str = ""  # in which its pid means something
    gpus: int = 1  # how many; 0 on the CPU
    memory_mib: int = 0  # of the smallest of them
    cgroup: str = ""  # where its commands are; "": in no group of their own
    out_of_memory: bool = False  # it pauses, because the machine ran out of memory (RAM)
    kept: bool = False  # it lives as long as `control/agents.json` names it
    waits_for: str = ""  # why it, or a job of it that shares GPUs, has not got its GPU yet
    until: float = 0.0  # when somebody's reservation of its GPU begins; 0: nobody has reserved it
    protocol: int = PROTOCOL  # which letters it understands
    where: str = ""  # the engine that carries it elsewhere, such as "slurm"; "": it is on this host
    node: str = ""  # ... and where that is
    ends_at: float = 0.0  # when its engine will end it, wall clock; 0: not known
    shares: bool = False  # it holds no GPU: each of its jobs books a part of one


@dataclass(frozen=True)
class MasterInfo(JsonRecord, _NamesProcess):
    """The acting Master, as it describes itself in `master.json`."""

    CALLED: ClassVar[str] = "a Master's info"

    epoch: int  # of its letters
    pid: int
    host: str
    started: int = 0
    boot_id: str = ""
    pid_namespace: str = ""


@dataclass(frozen=True)
class PageInfo(JsonRecord, _NamesProcess):
    """The web page of a base, as it describes itself in `page.json`; it holds `page.lock`."""

    CALLED: ClassVar[str] = "a page's info"

    address: str  # such as http://127.0.0.1:8631
    token: str  # stays when the page is started again
    pid: int
    started: int
    boot_id: str
    pid_namespace: str
    host: str
    read_token: str = ""  # for those who may only look; "": there is none

    @property
    def link(self) -> str:
        """What to open in a browser."""
        return f"{self.address}/?token={self.token}"

    @property
    def read_link(self) -> str:
        """What those open who may only look."""
        return f"{self.address}/?token={self.read_token}"


def read_page_info(files: Files, base: Base) -> PageInfo | None:
    """What the last page said about itself; None if there was none, or the file is bad."""
    try:
        return PageInfo.decode(base.page_info, files.read(base.page_info, INFO_LIMIT))
    except (FileNotFoundError, BadFileError, OtherVersionError):
        return None


def list_agents(files: Files, base: Base, *, resting: bool = False) -> list[str]:
    """Every agent that has a mailbox, in the order of their numbers; those that rest, if wanted."""
    names = files.names(base.agent_pool)
    found = {*agents_in(names, MAILBOX), *(agents_in(names, REST) if resting else ())}
    return sorted(found, key=_by_number)


def agents_in(names: list[str], suffix: str) -> list[str]:
    """The agents whose file with this suffix is among some names."""
    found = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(filter(is_plain_name, found), key=_by_number)


def _by_number(agent_id: str) -> tuple[int, str]:
    return len(agent_id), agent_id


def read_agent_info(files: Files, base: Base, agent_id: str) -> AgentInfo | None:
    """What a session says about itself; None if its file is missing or bad.

    All that is known of a session of another version is that it is one: it gets no letters.
    """
    path = base.agent_info(agent_id)
    try:
        return AgentInfo.decode(path, files.read(path, INFO_LIMIT))
    except OtherVersionError:
        return AgentInfo(agent_id, "", "", "", "", 0, 0, 0.0, protocol=0)
    except (FileNotFoundError, BadFileError):
        return None


def read_master_info(files: Files, base: Base) -> MasterInfo | None:
    """What the last acting Master says about itself; None if the file is missing or bad.

    Raises OtherVersionError: who does not know its epoch must not write letters.
    """
    try:
        return MasterInfo.decode(base.master_info, files.read(base.master_info, INFO_LIMIT))
    except OtherVersionError:
        raise
    except (FileNotFoundError, BadFileError):
        return None
