"""`postroom grid-engine`: qsub, qstat and qdel for scripts that were written for grid engine.

    postroom grid-engine ~/bin      writes three scripts there, each a call of this module

They understand the options that most scripts use, and report those that they ignore.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from ..commands.spec import CommandSpec
from ..errors import PostroomError
from ..queue import actions
from ..queue.queue_view import QueueView
from ..queue.rows import PENDING, RUNNING, JobView
from ..queue.submission import DEFAULT_PROJECT, check, submit
from ..store.base import create_base, default_base, open_base
from ..store.job_ids import JobId, UnknownJobError, find_jobs
from ..system.own_python import own_python
from .options import CONTEXT, array, duration, make_folder
from .output import print_table, settle, talk
from .script_lines import as_command, shell_of
from .wait import wait_for

NAMES = ("qsub", "qstat", "qdel")
_CODES = {"running": "r", "stopping": "dr", "queued": "qw"}


@click.command(context_settings=CONTEXT)
@click.argument("folder", type=click.Path(file_okay=False))
def command(folder: str) -> None:
    """Write `qsub`, `qstat` and `qdel` into FOLDER, for scripts that were written for grid engine.

    \b
      postroom grid-engine ~/bin
      qsub -cwd -t 1-10 train.sh       with its #$ lines
      qstat
      qdel 0b859f/3-9

    They use the queue of $POSTROOM_BASE, or your own. qsub knows -N -cwd -wd -t -hold_jid -p -P
    -v -V -h -b -S -o -e -j -sync -terse, -l gpu=N and -l h_rt=TIME; it reports other options and
    ignores them.
    """
    make_folder(folder)
    for name in NAMES:
        path = f"{folder}/{name}"
        if os.path.lexists(path) and not _is_ours(path):
            raise PostroomError(f"{path} exists, and is not one of ours: choose another folder")
        script = f'#!/bin/sh\nexec {shlex.join(own_python(_MODULE, name))} "$@"\n'
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        os.chmod(path, 0o755)  # noqa: S103 - a program for everybody's use
        click.echo(path)


_MODULE = "postroom.cli.grid_engine"


def _is_ours(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _MODULE in file.read(4096)
    except OSError:
        return False


@dataclass(frozen=True)
class GridOptions:
    """What qsub's options ask for: the command's own, and what only qsub knows."""

    spec: CommandSpec
    numbers: Sequence[int] = ()
    after: tuple[str, ...] = ()
    project: str = DEFAULT_PROJECT
    out: str = ""
    err: str = ""
    join: bool = False
    binary: bool = False
    sync: bool = False
    terse: bool = False

    def ask(self, **fields: Any) -> GridOptions:
        """Change what is asked for the command."""
        return replace(self, spec=replace(self.spec, **fields))

    def schedule(self, **fields: Any) -> GridOptions:
        """Change when and where it runs."""
        return self.ask(scheduling=replace(self.spec.scheduling, **fields))


_NOTHING_SAID = GridOptions(CommandSpec("", shell=""))

# Options that take a word, and that are ignored.
_LEFT_OUT = ("-q", "-pe", "-m", "-M", "-A", "-r", "-w", "-tc", "-R", "-ckpt", "-a", "-notify")


def read_options(words: Sequence[str], wanted: GridOptions) -> tuple[GridOptions, list[str]]:
    """Read qsub's options; return what they ask for, and the words after them."""
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        option = left.pop(0)
        if option in _SWITCHES:
            wanted = _SWITCHES[option](wanted)
        elif option in _VALUES:
            if not left:
                raise PostroomError(f"qsub: {option} needs a value")
            wanted = _VALUES[option](wanted, left.pop(0))
        else:
            count = {"-pe": 2, "-notify": 0}.get(option, 1 if option in _LEFT_OUT else 0)
            skipped = [option, *left[:count]]
            del left[:count]
            talk(f"qsub: {' '.join(skipped)} is ignored")
    return wanted, left


def _resources(wanted: GridOptions, text: str) -> GridOptions:
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name in ("gpu", "gpus", "ngpus") and value.isdecimal():
            wanted = wanted.schedule(gpus=int(value))
        elif name in ("h_rt", "s_rt"):
            wanted = wanted.ask(timeout_s=duration(value))
        else:
            talk(f"qsub: -l {part} is ignored")
    return wanted


def _variables(wanted: GridOptions, text: str) -> GridOptions:
    pairs = (part.partition("=") for part in text.split(","))
    found = {name: value if equals else os.environ.get(name, "") for name, equals, value in pairs}
    return wanted.ask(env={**wanted.spec.env, **found})


_SWITCHES: dict[str, Callable[[GridOptions], GridOptions]] = {
    "-cwd": lambda wanted: wanted.ask(cwd=os.getcwd()),
    "-h": lambda wanted: wanted.schedule(held=True),
    "-V": lambda wanted: wanted,  # every job gets the whole environment
    "-terse": lambda wanted: replace(wanted, terse=True),
}
_VALUES: dict[str, Callable[[GridOptions, str], GridOptions]] = {
    "-N": lambda wanted, text: wanted.ask(name=text),
    "-wd": lambda wanted, text: wanted.ask(cwd=os.path.abspath(text)),
    "-t": lambda wanted, text: replace(wanted, numbers=_tasks(text)),
    "-hold_jid": lambda wanted, text: replace(wanted, after=tuple(text.split(","))),
    "-p": lambda wanted, text: wanted.schedule(priority=_number(text)),
    "-P": lambda wanted, text: replace(wanted, project=text),
    "-v": _variables,
    "-o": lambda wanted, text: replace(wanted, out=text),
    "-e": lambda wanted, text: replace(wanted, err=text),
    "-j": lambda wanted, text: replace(wanted, join=text.startswith("y")),
    "-b": lambda wanted, text: replace(wanted, binary=text.startswith("y")),
    "-S": lambda wanted, text: wanted.ask(shell=os.path.basename(text)),
    "-l": _resources,
    "-sync": lambda wanted, text: replace(wanted, sync=text.startswith("y")),
}


def _tasks(text: str) -> Sequence[int]:
    return array(text if "-" in text else f"{text}-{text}")


def _number(text: str) -> int:
    if not re.fullmatch(r"-?\d+", text):
        raise PostroomError(f"qsub: {text!r} is no priority")
    return int(text)


def script_options(script: str) -> list[str]:
    """The words of the `#$` lines of a script."""
    lines = [line.removeprefix("#$") for line in script.splitlines() if line.startswith("#$")]
    return [word for line in lines for word in shlex.split(line, comments=True)]


def qsub(words: Sequence[str]) -> int:
    """Queue a script. It is read now; later changes do not matter, as with grid engine."""
    typed, rest = read_options(words, _NOTHING_SAID)
    if not rest:
        raise PostroomError("qsub: name a script, or a command with -b y")
    script, *arguments = rest
    wanted = typed
    if typed.binary:
        line, name = shlex.join(rest), os.path.basename(script)
    else:
        text, name = _read_script(script)
        inside, _ = read_options(script_options(text), _NOTHING_SAID)
        wanted, _ = read_options(words, inside)  # what is typed overrides what is inside
        line = as_command(text, script, arguments)
        wanted = wanted.ask(shell=wanted.spec.shell or shell_of(text))
    wanted = wanted.ask(name=wanted.spec.name or name)
    view = QueueView(create_base(_base()))
    jobs = submit(view.files, view.base, _specs(view, wanted, line), project=wanted.project)
    _print_ids(jobs, wanted)
    return wait_for(view, jobs) if wanted.sync else 0


def _read_script(path: str) -> tuple[str, str]:
    if path == "-":
        return sys.stdin.read(), "STDIN"
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(), os.path.basename(path)
    except OSError as error:
        raise PostroomError(f"qsub: cannot read {path}: {error.strerror}") from None


def _specs(view: QueueView, wanted: GridOptions, line: str) -> list[CommandSpec]:
    """The script as a command: one for each number of an array."""
    name = wanted.spec.name
    wanted = wanted.schedule(after_any=tuple(_named(view, wanted.after))).ask(
        command=_redirected(wanted, line),
        cwd=wanted.spec.cwd or os.path.expanduser("~"),
        env={**wanted.spec.env, "JOB_NAME": name},
        shell=wanted.spec.shell or "bash",
    )
    several = len(wanted.numbers) > 1
    return [
        check(replace(wanted.spec, name=f"{name}.{number}" if several else name, number=number))
        for number in wanted.numbers or [0]
    ]


def _redirected(wanted: GridOptions, line: str) -> str:
    """The command with the redirections of -o and -e; folders are ignored."""
    ends = []
    for sign, path in ((">", wanted.out), ("2>", wanted.err)):
        if not path:
            continue
        if os.path.isdir(path) or path.endswith("/"):
            talk(f"qsub: the folder {path} is ignored; read the output with: postroom logs JOB")
        else:
            # Of grid engine's variables, only the one that tells the tasks of an array apart.
            place = '"$SGE_TASK_ID"'.join(map(shlex.quote, path.split("$TASK_ID")))
            ends.append(f"exec {sign}{place}")
    if wanted.join:
        ends.append("exec 2>&1")
    return "\n".join([*ends, line])


def _named(view: QueueView, words: Sequence[str]) -> Iterator[JobId]:
    """The jobs with these ids, or with these names, as grid engine allows."""
    for word in words:
        try:
            yield from find_jobs(view.files, view.base, word)
            continue
        except UnknownJobError:
            if "/" in word:
                raise
        rows = view.jobs(state=",".join((*RUNNING, *PENDING)), text=word, count=10_000).jobs
        for row in rows:
            if row.name == word or row.name.rpartition(".")[0] == word:
                yield JobId(row.run, row.number)


def _print_ids(jobs: Sequence[JobId], wanted: GridOptions) -> None:
    first, last = jobs[0], jobs[-1]
    whole = first.run == last.run and last.number - first.number == len(jobs) - 1
    word = first.short if len(jobs) == 1 else f"{first.short}-{last.number}"
    if not whole:
        word = " ".join(job.short for job in jobs)
    if wanted.terse:
        click.echo(word)
    else:
        kind = "job-array" if len(jobs) > 1 else "job"
        click.echo(f'Your {kind} {word} ("{wanted.spec.name}") has been submitted')


def qstat(words: Sequence[str]) -> int:
    """List what waits and runs, as grid engine does; `qstat -j JOB` shows one."""
    view = QueueView(open_base(_base(), write=False))
    if "-j" in words:
        from .show import command as show

        shown = words[words.index("-j") + 1 : words.index("-j") + 2]
        return show([*shown, "-b", view.base.root], standalone_mode=False) or 0
    rows = view.jobs(state=",".join((*RUNNING, *PENDING)), count=1000).jobs
    if rows:
        heading = ["job-ID", "prior", "name", "user", "state", "submit/start at", "queue"]
        print_table([heading, *map(_row, rows)])
    return 0


def _row(row: JobView) -> list[str]:
    at = time.strftime("%m/%d/%Y %H:%M:%S", time.localtime(row.started_at or row.submitted_at))
    queue = f"agent {row.agent}" if row.agent else ""
    code = _CODES.get(row.state, "hqw")
    return [row.short, str(row.priority), row.name[:20], row.user, code, at, queue]


def qdel(words: Sequence[str]) -> int:
    """End jobs."""
    if not words:
        raise PostroomError("qdel: name jobs")
    view = QueueView(open_base(_base()))
    jobs = list(dict.fromkeys(_named(view, [part for word in words for part in word.split(",")])))
    if not jobs:
        raise PostroomError(f"qdel: no job is called {' '.join(words)}")
    settle(view, actions.kill(view, jobs))
    return 0


def _base() -> str:
    return default_base()


def main(name: str, words: Sequence[str]) -> None:
    """Run one of the scripts; an error is a sentence."""
    try:
        sys.exit({"qsub": qsub, "qstat": qstat, "qdel": qdel}[name](words))
    except click.ClickException as error:
        talk(f"{name}: {error.format_message()}")
    except (PostroomError, OSError) as error:
        talk(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
