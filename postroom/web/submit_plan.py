"""What a form or JSON asks to queue: read and checked before anything is queued."""

from __future__ import annotations

import io
import itertools
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..commands.command_source import read_lines
from ..commands.spec import GRACE_S, CommandSpec
from ..commands.sweep import sweep
from ..errors import PostroomError
from ..queue.job_words import jobs_named
from ..queue.notify import check_target
from ..queue.queue_view import QueueView
from ..queue.submission import DEFAULT_PROJECT, spread
from ..store.job_ids import JobId
from ..store.runs import MOST_PROJECT
from ..store.scheduling import MOST_PRIORITY, SchedulingOptions, check_require
from ..text.durations import parse_duration, write_duration
from ..text.moments import moment_words, parse_moment
from ..text.option_values import parse_limited_array

MOST_AT_ONCE = 10_000
MOST_TRIED = 200_000

Text = Annotated[str, Field(max_length=10_000)]
Word = Annotated[str, Field(max_length=200)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
T = TypeVar("T", bound=BaseModel)
SHELL = "bash"


class PlanError(PostroomError):
    """What was asked for cannot be queued."""


class SubmitForm(BaseModel):
    """What all jobs of one submission have in common."""

    model_config = ConfigDict(extra="forbid")

    name: Word = ""
    project: Annotated[str, Field(min_length=1, max_length=MOST_PROJECT)] = DEFAULT_PROJECT
    cwd: Annotated[str, Field(max_length=4000)] = ""
    env: dict[Word, Text] = Field(default_factory=dict, max_length=1000)
    shell: Annotated[str, Field(min_length=1, max_length=200)] = SHELL
    timeout_s: Seconds | None = None
    grace_s: Seconds = GRACE_S
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    priority: Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    gpus: Annotated[int, Field(ge=0, le=1000)] = 1
    memory_mib: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    memory: Word = Field("", description="A part of one GPU: 8G, or auto. Else as memory_mib.")
    over: Literal["", "warn", "limit", "kill"] = ""
    only_on: Literal["", "local", "slurm", "ray"] = ""
    require: Word = ""
    begin: Word = Field("", description="Not before: 22:00, fri 20:00, now+2h.")
    after: list[Word] = Field(default_factory=list, max_length=1000)
    after_any: list[Word] = Field(default_factory=list, max_length=1000)
    held: bool = False
    container: Word = Field("", description="The image of a container to run in.")
    array: Word = Field("", description="Each command once for each number: 1-100%4.")
    limit: Count = 0
    stop_after_failures: Count = 0
    snapshot: bool = False
    split_output: bool = False
    notify: list[Text] = Field(default_factory=list, max_length=10)
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


def specs_of(view: QueueView, wanted: Commands | Sweep, here: str) -> list[CommandSpec]:
    """The commands as they would be queued; one that could never run is an error."""
    if not wanted.project.strip() or not wanted.project.isprintable():
        raise PlanError("a project's name is one line, and not empty")
    bad = [name for name in wanted.env if not name.isidentifier() or not name.isascii()]
    if bad:
        raise PlanError(f"{bad[0]!r} is not the name of an environment variable: write NAME=VALUE")
    for target in wanted.notify:
        check_target(target)
    numbers, at_once = parse_limited_array(wanted.array) if wanted.array else (None, 0)
    specs = wanted.specs()
    if len(specs) * len(numbers or [0]) > MOST_AT_ONCE:
        raise PlanError(f"that is more than {MOST_AT_ONCE} jobs at once: submit them in parts")
    common = CommandSpec(
        "",
        name=wanted.name,
        cwd=wanted.cwd or here,
        env=wanted.env,
        timeout_s=wanted.timeout_s,
        retries=wanted.retries,
        grace_s=wanted.grace_s,
        shell=wanted.shell,
        merged=not wanted.split_output,
        container=wanted.container,
        over=wanted.over,
        scheduling=SchedulingOptions(
            priority=wanted.priority,
            held=wanted.held,
            after=_named(view, wanted.after),
            after_any=_named(view, wanted.after_any),
            gpus=wanted.gpus,
            where=wanted.only_on,
            require=check_require(wanted.require),
            begin_at=parse_moment(wanted.begin, time.time()) if wanted.begin else 0.0,
            lasts_s=wanted.timeout_s + wanted.grace_s if wanted.timeout_s else 0.0,
        ),
    )
    of_each = f"{wanted.memory_mib}M" if wanted.memory_mib else ""
    common = common.with_memory(wanted.memory or of_each)
    return spread(
        specs,
        common,
        numbers,
        limit=wanted.limit or at_once,
        failures=wanted.stop_after_failures,
        joint="-",
    )


def _named(view: QueueView, words: Sequence[str]) -> tuple[JobId, ...]:
    return tuple(dict.fromkeys(job for word in words for job in jobs_named(view, word)))


def commands_of(fields: Mapping[str, str]) -> Commands:
    """Read the form that queues commands."""
    text = fields.get("commands", "").replace("\r\n", "\n")
    if fields.get("whole") == "on":
        commands = [text.strip("\n")] if text.strip() else []
    else:
        commands = [line.command for line in read_lines(io.StringIO(text))]
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
        "shell": text("shell") or SHELL,
        "timeout_s": parse_duration(text("time_limit")) if text("time_limit") else None,
        "grace_s": parse_duration(text("grace")) if text("grace") else GRACE_S,
        "retries": _number(text("retries"), "retries", 0),
        "priority": _number(text("priority"), "priority", 0),
        "gpus": _number(text("gpus"), "GPUs", 1),
        "memory": text("memory"),
        "over": text("over"),
        "only_on": text("only_on"),
        "require": text("require"),
        "begin": text("begin"),
        "after": text("after").replace(",", " ").split(),
        "after_any": text("after_any").replace(",", " ").split(),
        "held": text("hold") == "on",
        "container": text("container"),
        "array": text("array"),
        "limit": _number(text("limit"), "at once", 0),
        "stop_after_failures": _number(text("stop_after_failures"), "failures", 0),
        "snapshot": text("snapshot") == "on",
        "split_output": text("split_output") == "on",
        "notify": [line.strip() for line in fields.get("notify", "").splitlines() if line.strip()],
    }


def form_of(spec: CommandSpec, project: str) -> dict[str, str]:
    """The fields of a form that would queue a command like this one."""
    scheduling = spec.scheduling
    return {
        "commands": spec.command,
        "whole": "on",
        "name": spec.name,
        "project": project,
        "cwd": spec.source or spec.cwd,
        "env": "\n".join(f"{name}={value}" for name, value in spec.env.items()),
        "shell": spec.shell,
        "time_limit": write_duration(spec.timeout_s) if spec.timeout_s else "",
        "grace": write_duration(spec.grace_s) if spec.grace_s != GRACE_S else "",
        "retries": str(spec.retries or 0),
        "priority": str(scheduling.priority),
        "gpus": str(scheduling.gpus),
        "memory": spec.memory or (f"{scheduling.memory_mib}M" if scheduling.memory_mib else ""),
        "over": spec.over,
        "only_on": scheduling.where,
        "require": scheduling.require,
        "container": spec.container,
        "snapshot": "on" if spec.snapshot else "",
        "split_output": "on" if spec.merged is False else "",
    }


def edit_form_of(spec: CommandSpec, project: str) -> dict[str, str]:
    """The fields of a form that changes this waiting job: all that it waits for, too."""
    scheduling = spec.scheduling
    return {
        **form_of(spec, project),
        "begin": moment_words(scheduling.begin_at) if scheduling.begin_at > time.time() else "",
        "after": " ".join(map(str, scheduling.after)),
        "after_any": " ".join(map(str, scheduling.after_any)),
    }


def edited(spec: CommandSpec, wanted: CommandSpec) -> CommandSpec:
    """A waiting job, with what its form says now; what no field is about stays as it is."""
    fields = ("command", "name", "env", "shell", "timeout_s", "grace_s", "retries", "container",
              "memory", "memory_mib", "over")  # fmt: skip
    options = ("priority", "gpus", "memory_mib", "shares", "where", "require", "begin_at", "after",
               "after_any", "lasts_s")  # fmt: skip
    own = {name: getattr(wanted, name) for name in fields}
    if not spec.snapshot:  # else it runs in a copy of a folder, which stays that one
        own["cwd"] = wanted.cwd
    scheduling = {name: getattr(wanted.scheduling, name) for name in options}
    return spec.but(**own, scheduling=replace(spec.scheduling, **scheduling))


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
