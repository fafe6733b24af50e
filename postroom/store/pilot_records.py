"""What a base knows of pilots: agents that compute elsewhere, started by a cluster's own engine.

    pilots/groups.json     which pilots the base is to have; written under `pilots/groups.lock`
    pilots/<id>.json       one pilot, as its stand-in describes it; when that is dead, as the keeper
    pilots/<id>.log        what its engine and its far end have said
    pilots/keeper.lock     held by the process that starts and ends pilots
    pilots/look.json       what the engines said last, for people; written by the keeper
    pilots/demand.json     how many jobs wait for each group; written by the acting Master

    SUBMITTED ──► STARTING ──ready: mailbox put up──► SERVING ──► DRAINING ──► ENDED
        '────────────'──────── wire ended, cancelled, silent ──'───────────────^

Only the stand-in changes these states, as long as it holds the agent's lock. The keeper calls a
pilot ENDED whose stand-in is dead, after it has told the engine to cancel it.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import BadFileError, OtherVersionError, PostroomError
from .base import Base
from .files import Files, replace_file
from .mailbox import is_plain_name
from .records import JsonRecord

LIMIT = 4 << 20
# What the acting Master says of waiting jobs counts for so long: then there is no such Master.
DEMAND_S = 15.0


class PilotState(enum.Enum):
    """Where a pilot is in its life."""

    SUBMITTED = "submitted"  # its engine was asked; the engine says why it is pending
    STARTING = "starting"  # its far end talks, and has no session yet
    SERVING = "serving"
    DRAINING = "draining"  # it takes no more letters
    ENDED = "ended"


@dataclass
class PilotGroup:
    """Pilots that are alike, and how many of them there may be."""

    engine: str  # "local", "slurm", "ray"
    most: int = 1
    least: int = 0
    pending: int = 8  # how many may wait for their nodes
    time_s: float | None = None  # how long one lives; None: as long as the engine lets it
    idle_s: float = 300.0
    gpus: int = 1  # of each
    memory_mib: int = 0  # of the largest GPU that a pilot has found; 0: none was ready yet
    gpu_name: str = ""  # of the GPU that the last one has found
    setup: str = ""  # shell lines that run on the node before Python does
    python: str = ""  # on the node; "": the one that runs here
    preload: str | None = None  # modules that sessions import; None: as on this host
    address: str = ""  # of a Ray cluster
    options: tuple[str, ...] = ()  # for the engine, as they are
    drained: bool = False  # no new pilots, and those that live take no more letters
    stopped: bool = False  # those that live end now
    paused: str = ""  # why no new pilots are started
    forgiven_at: float = 0.0  # deaths before this do not count
    temporary: bool = False  # of a program: when no Master acts any more, it drains and goes

    @property
    def shares_cards(self) -> bool:
        """Whether a pilot has a part of a card, as Ray gives them: its jobs book their memory."""
        said = dict(word.partition("=")[::2] for word in self.options if self.engine == "ray")
        with contextlib.suppress(KeyError, ValueError):
            return 0 < float(said["num_gpus"]) < 1
        return False


@dataclass
class PilotGroups(JsonRecord):
    """The groups of pilots that a base is to have."""

    CALLED: ClassVar[str] = "a list of groups of pilots"

    groups: dict[str, PilotGroup] = field(default_factory=dict)
    numbered: int = 0  # the number of the last pilot that was ever started

    def check(self) -> None:
        """Names become part of paths and of agents' ids."""
        if not all(is_plain_name(name) and len(name) <= 40 for name in self.groups):
            raise ValueError("the name of a group has at most 40 letters, digits, - and _")


@dataclass(frozen=True)
class PilotRecord(JsonRecord):
    """One pilot."""

    CALLED: ClassVar[str] = "a pilot's record"

    pilot: str  # its agent's id
    group: str
    engine: str
    state: PilotState
    job_name: str  # by which its engine knows it
    submitted_at: float
    engine_id: str = ""
    node: str = ""
    why: str = ""  # it is pending, or ended: in the engine's words
    ready_at: float = 0.0  # 0: it never was
    ends_at: float = 0.0  # when the engine will end it; 0: not known
    ended_at: float = 0.0
    idle_since: float = 0.0  # 0: it works
    jobs: int = 0  # how many it has done
    fault: bool = False  # it ended by itself, before it was ready


@dataclass(frozen=True)
class PilotDemand(JsonRecord):
    """How many jobs wait that a pilot of each group could run."""

    CALLED: ClassVar[str] = "the jobs that wait for pilots"

    at: float  # wall clock
    waiting: dict[str, int] = field(default_factory=dict)


@dataclass
class PilotLook(JsonRecord):
    """What the engines said of the pilots, for people who look: `pilots/look.json`."""

    CALLED: ClassVar[str] = "what the engines said of pilots"

    at: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)  # by group: why nothing is known
    pilots: dict[str, dict[str, str]] = field(default_factory=dict)  # id: why, node, engine_id


def read_groups(files: Files, base: Base) -> PilotGroups:
    """The groups of a base; none if nobody has ever added one. Raises BadFileError."""
    try:
        return PilotGroups.decode(base.pilot_groups, files.read(base.pilot_groups, LIMIT))
    except FileNotFoundError:
        return PilotGroups()


def has_pilots(files: Files, base: Base) -> bool:
    """Whether the base is to have pilots now: jobs that wait get one."""
    if not files.exists(base.pilot_groups):
        return False
    with contextlib.suppress(BadFileError, OtherVersionError):
        return not all(group.drained for group in read_groups(files, base).groups.values())
    return True  # somebody has added some; what is wrong with them is said elsewhere


def change_groups(files: Files, base: Base, change: Callable[[PilotGroups], None]) -> PilotGroups:
    """Read, change and write the groups, while nobody else does."""
    files.make_folder(base.pilots)
    give_up_at = time.monotonic() + 10.0
    while (lock := files.try_lock(f"{base.pilots}/groups.lock")) is None:
        if time.monotonic() > give_up_at:
            raise PostroomError(f"another process changes {base.pilot_groups}: try again")
        time.sleep(0.01)
    try:
        groups = read_groups(files, base)
        change(groups)
        try:
            groups.check()
        except ValueError as error:
            raise PostroomError(str(error)) from None
        _write(files, base, base.pilot_groups, groups, sync=True)
        return groups
    finally:
        lock.release()


def write_pilot(files: Files, base: Base, record: PilotRecord) -> None:
    """Write what is known of a pilot."""
    _write(files, base, base.pilot_record(record.pilot), record)


def read_pilots(files: Files, base: Base) -> dict[str, PilotRecord]:
    """Every pilot that the base knows; what cannot be read is left out."""
    found = {}
    for name in sorted(files.names(base.pilots), key=lambda name: (len(name), name)):
        pilot = name.removesuffix(".json")
        if pilot is name or pilot in ("groups", "demand", "look") or not is_plain_name(pilot):
            continue
        with contextlib.suppress(FileNotFoundError, BadFileError, OtherVersionError):
            path = base.pilot_record(pilot)
            found[pilot] = PilotRecord.decode(path, files.read(path, LIMIT))
    return found


def read_demand(files: Files, base: Base, now: float) -> dict[str, int]:
    """How many jobs wait for each group; none if no Master has said so for a while."""
    with contextlib.suppress(FileNotFoundError, BadFileError, OtherVersionError):
        demand = PilotDemand.decode(base.pilot_demand, files.read(base.pilot_demand, LIMIT))
        if abs(now - demand.at) < DEMAND_S:
            return demand.waiting
    return {}


def write_demand(files: Files, base: Base, demand: PilotDemand) -> None:
    """Say how many jobs wait; only the acting Master does."""
    _write(files, base, base.pilot_demand, demand)


def read_look(files: Files, base: Base) -> PilotLook:
    """What the engines have said last."""
    with contextlib.suppress(FileNotFoundError, BadFileError, OtherVersionError):
        return PilotLook.decode(base.pilot_look, files.read(base.pilot_look, LIMIT))
    return PilotLook()


def write_look(files: Files, base: Base, look: PilotLook) -> None:
    """Say what the engines have said; only the keeper does."""
    _write(files, base, base.pilot_look, look)


def _write(files: Files, base: Base, path: str, record: JsonRecord, *, sync: bool = False) -> None:
    replace_file(files, base.temporary(), path, record.encode(), sync=sync)
