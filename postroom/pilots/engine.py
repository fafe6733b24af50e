"""What carries a pilot to another machine: a cluster's own engine, which starts and ends it.

An engine gives a command whose stdin and stdout are the wire; the stand-in runs it. So the engine's
own login carries everything, and Postroom opens no port. `look` asks about all pilots at once. If
it fails, nothing is known: nobody concludes that a pilot is gone.
"""

from __future__ import annotations

import enum
import shlex
import sys
from dataclasses import dataclass
from typing import Protocol

from ..errors import PostroomError
from ..store.pilot_records import PilotGroup
from ..system.own_python import PACKAGE_PARENT

FAR_END = "postroom.pilots.far_end"
# The exit code of a command that knows that its pilot was taken away (EX_TEMPFAIL).
TAKEN_CODE = 75


class EngineError(PostroomError):
    """An engine did not answer, or refused; its words are the message."""


class Fate(enum.Enum):
    """What an engine says about a pilot."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"  # by itself
    TAKEN = "taken"  # by the engine or a person: cancelled, time limit, preempted, node failed
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Sighting:
    """One pilot, as its engine sees it."""

    engine_id: str
    fate: Fate
    why: str = ""  # in the engine's words
    node: str = ""
    ends_at: float = 0.0


class Engine(Protocol):
    """Starts pilots, looks at them, cancels them."""

    # Whether the command is not the far end itself, but carries its wire: a signal that ends the
    # command is trouble of this host.
    carries: bool

    def command(self, group: PilotGroup, job_name: str) -> list[str]:
        """The command whose stdin and stdout reach a far end."""

    def look(self, job_names: set[str]) -> dict[str, Sighting]:
        """Those of these pilots that the engine knows; EngineError: nobody knows."""

    def cancel(self, job_name: str, engine_id: str) -> None:
        """End a pilot, pending or running; one that is gone is fine. EngineError: it may live."""


def far_script(group: PilotGroup) -> str:
    """The shell script that runs on the node."""
    lines = ["set -e"]
    if group.setup:
        lines.append(group.setup.rstrip("\n"))
    python = group.python or sys.executable
    start = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r})" if not group.python else ""
    start = f"{start}; " if start else ""
    code = f"{start}import runpy; runpy.run_module({FAR_END!r}, run_name='__main__')"
    # Only the wire may use stdout: what the setup prints goes to the log.
    lines.append(f"exec {shlex.quote(python)} -P -c {shlex.quote(code)} >&3")
    return "exec 3>&1 1>&2\n" + "\n".join(lines) + "\n"


def open_engine(group: PilotGroup) -> Engine:
    """The engine of a group."""
    if group.engine == "local":
        from .local_engine import LocalEngine

        return LocalEngine()
    if group.engine == "slurm":
        from .slurm_engine import SlurmEngine

        return SlurmEngine()
    if group.engine == "ray":
        from .ray_engine import RayEngine

        return RayEngine()
    raise PostroomError(f"{group.engine!r} is not an engine: use local, slurm or ray")
