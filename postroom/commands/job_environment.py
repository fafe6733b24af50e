"""The environment of a queued command: that of the process that submitted it.

    job_pool/<run>/<name>.env      variables and umask, for its owner only; named by its content

All jobs that were submitted to a run from one environment share a file, which is written before
they are, and removed with the run. Some variables stay behind, because they mean something only
where they were set.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ..errors import BadFileError, PostroomError
from ..gpus.ledger.lease_environment import OUR_PORT, PORT_NAMES
from ..store.base import Base
from ..store.files import Files
from ..store.records import JsonRecord
from ..system.processes import current_umask

LIMIT = 32 << 20
# The mode of a file whose name is on disk: the next submitter need not sync that again.
SETTLED = 0o400
# Of our own variables, jobs take along only this one: a job may submit others to the same queue.
BASE = "POSTROOM_BASE"
# These say which GPUs a process may use. A job gets them from its agent.
GRANTS = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)
# These belong to the user's login, which may be over when the job starts.
LOGIN = frozenset(
    {
        "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY",
        "SSH_AUTH_SOCK",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "SSH_TTY",
        "STY",
        "TMUX",
        "TMUX_PANE",
        "WAYLAND_DISPLAY",
        "WINDOWID",
        "XAUTHORITY",
        "XDG_SESSION_ID",
    }
)
# Every shell sets these itself.
SHELL = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})


@dataclass(frozen=True)
class JobEnvironment(JsonRecord):
    """The variables and the umask that some jobs were submitted with."""

    CALLED: ClassVar[str] = "the environment of a job"

    variables: dict[str, str]
    umask: int

    def check(self) -> None:
        """A umask has nine bits."""
        if not 0 <= self.umask <= 0o777:
            raise ValueError(f"{self.umask} is no umask")

    @classmethod
    def of_this_process(cls) -> JobEnvironment:
        """What jobs that are submitted now take along."""
        names = sorted(set(os.environ) - LOGIN - SHELL)
        found = {name: os.environ[name] for name in names if not _is_of_agent(name)}
        for name in PORT_NAMES:  # of a lease of the shell that submits
            if found.get(name) == os.environ.get(OUR_PORT):
                found.pop(name, None)
        return cls(found, current_umask())

    @cached_property
    def name(self) -> str:
        """Its name in a run."""
        return hashlib.sha256(self.encode()).hexdigest()[:32]

    def put(self, files: Files, base: Base, run: str) -> None:
        """Store it in a run, unless it is there; the caller keeps the run from being removed."""
        path = base.environment(run, self.name)
        try:
            read_environment(files, base, run, self.name)
            if stat.S_IMODE(os.stat(path).st_mode) == SETTLED:
                return
        except PostroomError:  # it is not there, or was changed
            temporary = base.temporary()
            files.write_new(temporary, [self.encode()], sync=True)
            files.move(temporary, path)
        files.sync_folder(base.run_folder(run))
        os.chmod(path, SETTLED)

    def over(self, agents: Mapping[str, str]) -> dict[str, str]:
        """The environment of a job: all of this, and what jobs get from their agent."""
        own = {name: value for name, value in agents.items() if _is_of_agent(name)}
        return own | self.variables


def read_environment(files: Files, base: Base, run: str, name: str) -> JobEnvironment:
    """Read the environment of some jobs of a run."""
    path = base.environment(run, name)
    try:
        found = JobEnvironment.decode(path, files.read(path, LIMIT))
    except FileNotFoundError:
        raise PostroomError(
            f"the environment that it was submitted with is missing ({path}): submit it again"
        ) from None
    if found.name != name:
        raise BadFileError(path, "was changed since the job was submitted: submit it again")
    return found


def _is_of_agent(name: str) -> bool:
    """Whether a job gets a variable from its agent."""
    return name in GRANTS or (name.startswith("POSTROOM_") and name != BASE)
