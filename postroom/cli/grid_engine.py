"""`postroom grid-engine`: qsub, qstat and qdel for scripts that were written for grid engine.

    postroom grid-engine ~/bin      writes three scripts there, each a call of this module

They understand the options that most scripts use, and report those that they ignore.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence

import click

from ..commands.spec import CommandSpec
from ..errors import PostroomError
from ..queue import actions
from ..queue.queue_view import QueueView
from ..queue.rows import PENDING, RUNNING, JobView
from ..queue.submission import submit
from ..store.base import create_base, default_base, open_base
from ..store.job_ids import JobId, UnknownJobError, find_jobs
from ..system.own_python import own_python
from .options import CONTEXT, make_folder
from .output import print_table, settle, talk
from .script_lines import GRID_ENGINE, ScriptLines, as_command, shell_of
from .submit import command as submit_command
from .submit import make_specs
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

    They use the queue of $POSTROOM_BASE, or your own. qsub knows -N -cwd -wd -t -tc -hold_jid -p
    -P -v -V -h -b -S -o -e -j -sync -terse, -l gpu=N and -l h_rt=TIME. It ignores other options,
    and says so.
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


class QsubOptions(ScriptLines):
    """The options of qsub: words of `submit`, and what only qsub knows."""

    def __init__(self) -> None:
        super().__init__(kind=GRID_ENGINE, verdict="is ignored")
        self.own: dict[str, str] = {}

    def take(self, option: str, value: str = "", *, line: str) -> None:
        """Take in one option."""
        if option == "-cwd":
            self.words += ["--cwd", os.getcwd()]
        elif option in ("-b", "-e", "-hold_jid", "-j", "-o", "-terse"):
            self.own[option] = value
        else:
            super().take(option, value, line=line)

    def says(self, option: str) -> bool:
        """Whether an option of yes or no says yes."""
        return self.own.get(option, "").startswith("y")


def script_options(script: str) -> list[str]:
    """The words of the `#$` lines of a script."""
    lines = [line.removeprefix("#$") for line in script.splitlines() if line.startswith("#$")]
    return [word for line in lines for word in shlex.split(line, comments=True)]


def qsub(words: Sequence[str]) -> int:
    """Queue a script. It is read now; later changes do not matter, as with grid engine."""
    typed, inside = QsubOptions(), QsubOptions()
    rest = typed.read_typed(words)
    if not rest:
        raise PostroomError("name a script, or a command with -b y")
    script, *arguments = rest
    shell = "bash"
    if typed.says("-b"):
        line, name = shlex.join(rest), os.path.basename(script)
    else:
        text, name = _read_script(script)
        inside.read_typed(script_options(text))
        line, shell = as_command(text, script, arguments), shell_of(text)
    for said in [*inside.left_out, *typed.left_out]:
        talk(f"qsub: {said}")
    usual = ["--cwd", os.path.expanduser("~"), "--shell", shell, "--name", name]
    # What is typed overrides what is inside, and both what is usual: the last one counts.
    asked = [*usual, *inside.words, *typed.words, "-b", ".", "true"]
    options = submit_command.make_context("qsub", asked).params
    typed.own = {**inside.own, **typed.own}
    options["env"] += (f"JOB_NAME={options['name']}",)
    options["after_any"] = [word for word in typed.own.get("-hold_jid", "").split(",") if word]
    view = QueueView(create_base(default_base()))
    lines = [CommandSpec(_redirected(typed, line))]
    specs = make_specs(lines, options, lambda words: list(_named(view, words)))
    if options["array"] is None:
        specs = [spec.but(number=0) for spec in specs]  # it has no SGE_TASK_ID
    jobs = submit(view.files, view.base, specs, project=options["project"])
    _print_ids(jobs, options["name"], terse="-terse" in typed.own)
    return wait_for(view, jobs) if options["wait"] else 0


def _read_script(path: str) -> tuple[str, str]:
    if path == "-":
        return sys.stdin.read(), "STDIN"
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(), os.path.basename(path)
    except OSError as error:
        raise PostroomError(f"cannot read {path}: {error.strerror}") from None


def _redirected(wanted: QsubOptions, line: str) -> str:
    """The command with the redirections of -o and -e; folders are ignored."""
    ends = []
    for sign, path in ((">", wanted.own.get("-o")), ("2>", wanted.own.get("-e"))):
        if not path:
            continue
        if os.path.isdir(path) or path.endswith("/"):
            talk(f"qsub: the folder {path} is ignored; read the output with: postroom logs JOB")
        else:
            # Of grid engine's variables, only the one that tells the tasks of an array apart.
            place = '"$SGE_TASK_ID"'.join(map(shlex.quote, path.split("$TASK_ID")))
            ends.append(f"exec {sign}{place}")
    if wanted.says("-j"):
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


def _print_ids(jobs: Sequence[JobId], name: str, *, terse: bool) -> None:
    first, last = jobs[0], jobs[-1]
    whole = first.run == last.run and last.number - first.number == len(jobs) - 1
    word = first.short if len(jobs) == 1 else f"{first.short}-{last.number}"
    if not whole:
        word = " ".join(job.short for job in jobs)
    kind = "job-array" if len(jobs) > 1 else "job"
    click.echo(word if terse else f'Your {kind} {word} ("{name}") has been submitted')


def qstat(words: Sequence[str]) -> int:
    """List what waits and runs, as grid engine does; `qstat -j JOB` shows one."""
    view = QueueView(open_base(default_base(), write=False))
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
        raise PostroomError("name jobs")
    view = QueueView(open_base(default_base()))
    jobs = list(dict.fromkeys(_named(view, [part for word in words for part in word.split(",")])))
    if not jobs:
        raise PostroomError(f"no job is called {' '.join(words)}")
    settle(view, actions.kill(view, jobs))
    return 0


def main(name: str, words: Sequence[str]) -> None:
    """Run one of the scripts; an error is a sentence."""
    try:
        sys.exit({"qsub": qsub, "qstat": qstat, "qdel": qdel}[name](words))
    except click.ClickException as error:
        talk(f"{name}: {error.format_message()}")
    except (PostroomError, OSError) as error:
        talk(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
