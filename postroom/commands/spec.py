"""What a user can ask for one shell command, wherever it comes from.

Files, sweeps, forms, JSON, qsub and generators all make CommandSpecs. A spec becomes a `Job` on its
way in, and is read back from the job's parcel to show it, run it or queue it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ..errors import OtherVersionError, PostroomError
from ..jobs import Job
from ..parcel.sheets import JobSheet
from ..store.job_ids import JobId
from ..store.scheduling import SchedulingOptions
from ..text.sizes import to_mib

# A job is a command when its task is this. No session imports it.
COMMAND = "postroom.commands.spec:command"

# A command that uses more GPU memory than is reserved for it: its log says so; or libraries that
# can are told to use no more; or it is ended.
OVER = ("warn", "limit", "kill")
AUTO = "auto"  # what a command needs is measured

# Between SIGTERM and SIGKILL: long enough to write a checkpoint of some gigabytes.
GRACE_S = 10.0
# How much of .OUT and of .ERR is kept: half from the start and half from the end.
OUTPUT_BYTES = 64 << 20
_ANY_TIME = SchedulingOptions()


def command(**_: Any) -> None:
    """The task of all commands: a name that can be looked up; it is never called."""
    raise NotImplementedError("a command is run by its session, not called")


@dataclass(frozen=True)
class CommandSpec:
    """One command, and everything that is asked for it."""

    command: str
    name: str = ""
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)  # on top of its environment
    timeout_s: float | None = None
    retries: int | None = None  # None: not said, which is 0 unless a batch says otherwise
    grace_s: float = GRACE_S
    nice: int = 0
    shell: str = "bash"
    before: str = ""  # a command that runs before it
    after: str = ""  # a command that runs after it, however it ended
    output_bytes: int = OUTPUT_BYTES  # of each of its two logs
    merged: bool | None = None  # stderr goes into .OUT, too; None: in the queue it does
    arguments: dict[str, Any] = field(default_factory=dict)  # of a sweep, for tables
    number: int = 0  # of a batch or an array, counted from 1: its SGE_TASK_ID
    checkpoint: bool = False  # whether it gets a folder that outlives its attempts
    environment: str = ""  # its name in the run; "": that of its agent
    snapshot: str = ""  # of the code that it runs; its name in the run
    source: str = ""  # the folder of which the snapshot was taken
    scheduling: SchedulingOptions = _ANY_TIME
    rerun_of: JobId | None = None
    memory: str = ""  # "auto" or a size: the part of a GPU that is reserved for it
    over: str = ""  # what to do if it uses more than that: see `OVER`; "": warn
    container: str = ""  # the image that it runs in; "": in none
    repeat: int = 0  # how often the same command comes before it in a batch

    # Decided for it by a batch or the queue
    folder: str = ""  # for INFO, .OUT and .ERR, which have its name; "": a folder of the base
    memory_mib: int | None = None  # of its GPU's memory, to be reserved; None: what is measured
    card: str = ""  # the GPU that it should run on, by its uuid

    @cached_property
    def key(self) -> str:
        """What makes it the same job when the batch is repeated."""
        known = json.dumps([self.command, self.cwd, self.env, self.repeat], sort_keys=True)
        return hashlib.sha256(known.encode()).hexdigest()[:20]

    def check(self) -> CommandSpec:
        """Refuse what Linux cannot start a process with, whatever the command is."""
        texts = [self.command, self.name, self.cwd, self.shell, self.before, self.after]
        texts.append(self.container)
        try:
            whole = os.fsencode("\n".join((*texts, *self.env, *self.env.values())))
        except UnicodeEncodeError:
            raise PostroomError(
                f"{_short(self.command)} holds half a character, which cannot be written to a file"
            ) from None
        if b"\0" in whole:
            raise PostroomError(f"{_short(self.command)} holds a zero byte: is that a text file?")
        for name in self.env:
            if not name or "=" in name:
                raise PostroomError(f"{name!r} cannot be the name of an environment variable")
        return self

    def with_memory(self, memory: str) -> CommandSpec:
        """The same with a part of one GPU ("8G" or "auto"), or with several GPUs of that size."""
        mib = None if memory in ("", AUTO) else to_mib(memory)
        if memory == AUTO and self.scheduling.gpus != 1:
            raise PostroomError("--memory auto is for jobs with one GPU: name a size, as in 40G")
        shares = bool(memory) and self.scheduling.gpus == 1
        scheduling = replace(self.scheduling, memory_mib=mib or 0, shares=shares)
        return self.but(memory=memory, memory_mib=mib, scheduling=scheduling)

    def but(self, **changes: Any) -> CommandSpec:
        """A copy with changes, in 1 µs: `replace` takes 14, and a batch makes three for a line."""
        made = object.__new__(CommandSpec)
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("key", None)
        made.__dict__.update(changes)
        return made

    def with_defaults(self, defaults: CommandSpec) -> CommandSpec:
        """Fill in what it does not say."""
        said, more = self.__dict__, defaults.__dict__
        return self.but(
            **{name: more[name] for name, usual in _USUAL.items() if said[name] == usual}
        )

    def encode(self) -> dict[str, Any]:
        """As plain JSON, without what is as usual."""
        found = {
            name: value for name, usual in _USUAL.items() if (value := getattr(self, name)) != usual
        }
        if "scheduling" in found:
            found["scheduling"] = self.scheduling.encode()
        if self.rerun_of is not None:
            found["rerun_of"] = str(self.rerun_of)
        return {"command": self.command, "cwd": self.cwd, **found}

    @classmethod
    def decode(cls, said: dict[str, Any]) -> CommandSpec:
        """Read what `encode` made. What it does not know is left out; no command is a TypeError."""
        known = {name: said[name] for name in ("command", *_USUAL) if name in said}
        scheduling, rerun_of = known.pop("scheduling", {}), known.pop("rerun_of", None)
        # A job whose scheduling options make no sense has none, and runs: the Master says so.
        with contextlib.suppress(ValueError):
            known["scheduling"] = SchedulingOptions.decode(scheduling) if scheduling else _ANY_TIME
        with contextlib.suppress(ValueError):
            known["rerun_of"] = JobId.parse(rerun_of) if rerun_of else None
        return cls(**known)

    def to_job(self) -> Job:
        """The job that goes into a run."""
        arguments = self.encode()
        for name in _OF_THE_SHEET:
            arguments.pop(name, None)
        job = Job(COMMAND, **arguments)
        return job.options(
            name=self.name or None, retries=self.retries or 0, timeout_s=self.timeout_s
        )

    @classmethod
    def of_job(cls, sheet: JobSheet, job: int) -> CommandSpec:
        """Read a job of a parcel back; BadFileError, or TypeError where it is no command."""
        said = sheet.plain(job)
        unknown = said.keys() - _USUAL.keys() - {"command", "submitted_at", "key"}
        if unknown:
            raise OtherVersionError(sheet.parcel.path, f"job {job} asks for {min(unknown)!r:.60}")
        return cls.decode(
            {
                **said,
                "name": sheet.name(job) if sheet.names else "",
                "timeout_s": sheet.options.timeout_s,
                "retries": sheet.options.retries,
            }
        )


def _short(command: str) -> str:
    return f"the command {command[:60]!r}{'...' if len(command) > 60 else ''}"


# These are in the sheet of a parcel, beside the arguments.
_OF_THE_SHEET = ("name", "timeout_s", "retries")
# What each field holds when nothing was said.
_USUAL: dict[str, Any] = {
    one.name: one.default if one.default is not MISSING else {}
    for one in fields(CommandSpec)
    if one.name != "command"
}
