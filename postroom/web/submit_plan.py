"""What a form or JSON asks to queue: read and checked before anything is queued."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..commands.command_source import read_lines
from ..commands.spec import CommandSpec
from ..commands.sweep import sweep
from ..errors import PostroomError
from ..queue.submission import DEFAULT_PROJECT, check
from ..store.base import Base
from ..store.files import Files
from ..store.job_ids import JobId, find_jobs
from ..store.runs import MOST_PROJECT
from ..store.scheduling import MOST_PRIORITY, SchedulingOptions
from ..text.durations import parse_duration
from ..text.memory_sizes import to_mib

MOST_AT_ONCE = 10_000
MOST_TRIED = 200_000

Text = Annotated[str, Field(max_length=10_000)]
Word = Annotated[str, Field(max_length=200)]
T = TypeVar("T", bound=BaseModel)


class PlanError(PostroomError):
    """What was asked for cannot be queued."""


class SubmitForm(BaseModel):
    """What all jobs of one submission have in common."""

    model_config = ConfigDict(extra="forbid")

    name: Word = ""
    project: Annotated[str, Field(min_length=1, max_length=MOST_PROJECT)] = DEFAULT_PROJECT
    cwd: Annotated[str, Field(max_length=4000)] = ""
    env: dict[Word, Text] = Field(default_factory=dict, max_length=1000)
    timeout_s: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    priority: Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    gpus: Annotated[int, Field(ge=0, le=1000)] = 1
    memory_mib: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    after: list[Word] = Field(default_factory=list, max_length=1000)
    held: bool = False
    dry_run: bool = False


class Commands(SubmitForm):
    """One or many shell commands."""

    commands: list[Text] = Field(min_length=1, max_length=MOST_AT_ONCE)

    def specs(self) -> list[CommandSpec]:
        """One for each command."""
        return [CommandSpec(command) for command in self.commands]


class Sweep(SubmitForm):
    """One command for every combination of some values."""

    template: Text = Field(min_length=1)
    values: list[Word] = Field(min_length=1, max_length=50)
    where: Annotated[str, Field(max_length=300)] = ""

    def specs(self) -> list[CommandSpec]:
        """One for each combination."""
        made = sweep(self.template, self.values, self.where, most_tried=MOST_TRIED)
        found = list(itertools.islice(made, MOST_AT_ONCE + 1))
        if len(found) > MOST_AT_ONCE:
            raise PlanError(
                f"that is more than {MOST_AT_ONCE} jobs at once: take fewer values, or leave "
                "combinations out with a condition"
            )
        if not found:
            raise PlanError("the condition leaves no combination: nothing would be queued")
        return found


def specs_of(files: Files, base: Base, wanted: Commands | Sweep, here: str) -> list[CommandSpec]:
    """The commands as they would be queued; one that could never run is an error."""
    after: list[JobId] = []
    for word in wanted.after:
        after += find_jobs(files, base, word)
    if not wanted.project.strip() or not wanted.project.isprintable():
        raise PlanError("a project's name is one line, and not empty")
    bad = [name for name in wanted.env if not name.isidentifier() or not name.isascii()]
    if bad:
        raise PlanError(f"{bad[0]!r} is no name of an environment variable: write NAME=VALUE")
    common = CommandSpec(
        "",
        cwd=wanted.cwd or here,
        env=wanted.env,
        timeout_s=wanted.timeout_s,
        retries=wanted.retries,
        scheduling=SchedulingOptions(
            priority=wanted.priority,
            held=wanted.held,
            after=tuple(after),
            gpus=wanted.gpus,
            memory_mib=wanted.memory_mib,
        ),
    )
    specs = wanted.specs()
    return [
        check(replace(spec.with_defaults(common), name=_name(wanted.name, place, len(specs))))
        for place, spec in enumerate(specs, 1)
    ]


def commands_of(fields: Mapping[str, str]) -> Commands:
    """Read the form that queues commands."""
    commands = [line.command for line in read_lines(io.StringIO(fields.get("commands", "")))]
    if not commands:
        raise PlanError("write at least one command")
    return _valid(Commands, {**_common(fields), "commands": commands})


def sweep_of(fields: Mapping[str, str]) -> Sweep:
    """Read the form that queues a sweep."""
    values = [line.strip() for line in fields.get("values", "").splitlines() if line.strip()]
    if not values:
        raise PlanError("give values, a name in each line: lr=0.1,0.01")
    own = {"template": fields.get("template", "").strip(), "where": fields.get("where", "").strip()}
    return _valid(Sweep, {**_common(fields), **own, "values": values})


def _common(fields: Mapping[str, str]) -> dict[str, Any]:
    def text(name: str) -> str:
        return fields.get(name, "").strip()

    env = {}
    for line in fields.get("env", "").splitlines():
        if line.strip():
            name, equals, value = line.strip().partition("=")
            if not equals:
                raise PlanError(f"{line.strip()!r} sets no variable: write NAME=VALUE")
            env[name] = value
    return {
        "name": text("name"),
        "project": text("project") or DEFAULT_PROJECT,
        "cwd": text("cwd"),
        "env": env,
        "timeout_s": parse_duration(text("timeout")) if text("timeout") else None,
        "retries": _number(text("retries"), "retries", 0),
        "priority": _number(text("priority"), "priority", 0),
        "gpus": _number(text("gpus"), "GPUs", 1),
        "memory_mib": to_mib(text("memory")) if text("memory") else 0,
        "after": text("after").replace(",", " ").split(),
        "held": text("held") == "on",
    }


def _number(text: str, name: str, usual: int) -> int:
    if not text:
        return usual
    if not re.fullmatch(r"-?\d{1,12}", text, re.ASCII):
        raise PlanError(f"{name}: {text!r} is no whole number")
    return int(text)


def _valid(model: type[T], fields: dict[str, Any]) -> T:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise PlanError(f"{where}: {first['msg'].lower()}") from None


def _name(name: str, place: int, of: int) -> str:
    return f"{name}-{place}" if name and of > 1 else name
