"""An errand: one attempt at one command, with all that its minder has to know.

It travels from the worker, which reads the parcel, over the guardian to the minder, as one line of
JSON. A job is a command when its task is `COMMAND`; no session imports that as a kernel.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ..parcel.sheets import JobEnd

COMMAND = "postroom.commands.attempt:command"

# Between SIGTERM and SIGKILL: long enough to write a checkpoint of some gigabytes.
GRACE_S = 10.0
# What a command that was told to end, or is past its time, exits with to say that it has saved what
# it did, and wants to go on from there (EX_TEMPFAIL of sysexits.h).
GO_ON = 75
# A command that takes longer than this should not have others wait behind it.
LINGER_S = 0.05
# Of each of .OUT and .ERR so much is kept, half of it from the beginning and half from the end.
OUTPUT_BYTES = 64 << 20


def command(**_: Any) -> None:
    """Stand for all commands, so that their task has a name that can be found."""
    raise NotImplementedError("a command is run by its session, not called")


class Stopped(Exception):
    """The command was ended because its session was told to stop: nobody is to blame."""


@dataclass(frozen=True)
class AttemptEnd:
    """How an errand ended."""

    done: JobEnd
    again: str | None = None  # the kind of note by which it is tried again


@dataclass(frozen=True)
class CommandAttempt:
    """One attempt at one command."""

    # Which job, and whose
    base: str
    run: str
    job: int
    attempt: int
    failed: int
    retries: int
    durable: bool
    agent: str
    gpu: str
    gpu_name: str

    # What the job asks
    command: str
    folder: str  # where INFO, .OUT, .ERR and the rest go; its last part names these files
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    grace_s: float = GRACE_S
    nice: int = 0
    shell: str = "bash"
    before: str = ""
    after: str = ""
    output_bytes: int = OUTPUT_BYTES
    arguments: dict[str, Any] = field(default_factory=dict)  # of a sweep, for INFO
    number: int = 0  # of the line, counted from 1, as grid engine's SGE_TASK_ID is
    label: str = ""  # what people call it
    memory_mib: int | None = None  # of its card, declared; for a session that shares cards
    card: str = ""  # where such a session should run it, by its uuid
    elsewhere: str = ""  # a card that another session of the base has, and that it needs
    checkpoint: bool = False  # whether it gets a folder that outlives its attempts

    @property
    def name(self) -> str:
        """What the job is called."""
        return self.label or self.folder.rpartition("/")[2]

    @property
    def job_name(self) -> str:
        """Names the job among all of its base."""
        return f"{self.run}/{self.job}"

    def encode(self) -> bytes:
        """As one line."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> CommandAttempt:
        """Read what `encode` wrote."""
        return cls(**json.loads(line))


# What a job's arguments may say; the rest of an errand is the session's to say.
ASKED = (
    "command",
    "folder",
    "cwd",
    "env",
    "grace_s",
    "nice",
    "shell",
    "before",
    "after",
    "output_bytes",
    "arguments",
    "number",
    "label",
    "checkpoint",
    "memory_mib",
    "card",
)
