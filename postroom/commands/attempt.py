"""One attempt at one command, and how it ended.

An attempt travels from the worker, which reads the parcel, through the guardian to the minder, as
one line. The guardian reads only its first word.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..parcel.sheets import JobEnd
from .job_folder import working_folder
from .spec import CommandSpec

# The exit code by which a command that was told to end, or is past its time limit, says that it has
# saved its state and wants to continue from there (EX_TEMPFAIL of sysexits.h).
CONTINUE_LATER = 75
# After this long, a command's session leaves the rest of its letter to others.
LINGER_S = 0.05
# The first word of an attempt's line.
ATTEMPT = b"attempt "


class Stopped(Exception):
    """The command was ended because its session was told to stop: this is nobody's fault."""


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended."""

    done: JobEnd
    again: str | None = None  # the kind of note with which the job is requeued


@dataclass(frozen=True)
class CommandAttempt:
    """One attempt at one command."""

    spec: CommandSpec
    run: str
    job: int
    attempt: int
    failed: int  # how many earlier attempts were failures of the command itself
    elsewhere: str = ""  # a GPU of another session of the base, which the command needs

    @property
    def name(self) -> str:
        """What people call the job."""
        return self.spec.name or self.spec.folder.rpartition("/")[2]

    @property
    def job_name(self) -> str:
        """Names the job among all jobs of its base."""
        return f"{self.run}/{self.job}"

    @property
    def cwd(self) -> str:
        """Where the command runs."""
        return working_folder(self.spec.folder, self.spec.cwd, self.spec.source)

    def encode(self) -> bytes:
        """As one line."""
        fields = {**vars(self), "spec": self.spec.encode()}
        return ATTEMPT + json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> CommandAttempt:
        """Read what `encode` wrote."""
        fields = json.loads(line.removeprefix(ATTEMPT))
        return cls(CommandSpec.decode(fields.pop("spec")), **fields)
