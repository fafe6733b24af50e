"""`postroom run`: run a file of shell commands on a list of GPUs. Also installed as `hog`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..batch.batch_view import LiveView, PlainView, summary, write_results
from ..batch.line_order import InOrder
from ..batch.runner import Batch, BatchOptions, BatchView, Runner, completer
from ..commands.command_source import (
    Feed,
    Listed,
    Numbering,
    Source,
    read_lines,
    read_yielder,
)
from ..commands.spec import OVER, CommandSpec
from ..errors import PostroomError
from ..gpus.cards.gpu_list import GpuFile, SlotSpec, cards_of, parse_gpus
from ..master import Master
from ..session.sessions import COMMANDS_ONLY, Sessions
from ..system.own_python import check_alive, start_detached
from ..text.option_values import environment
from . import codes
from .options import CONTEXT, at_least, duration, make_folder
from .output import talk

if TYPE_CHECKING:
    from ..batch.memory_packer import Packer
    from ..commands.code_snapshot import CodeSnapshot

DEFAULT_OUTPUT = "postroom_run"

OPTIONS = [
    click.option("--gpus", metavar="LIST",
                 help="GPUs, one per slot: 0,0,1 or all or 2-5 or 0,1;2,3 or cpu."),
    click.option("--pilots", metavar="GROUP",
                 help="Run on pilots like those of GROUP of your queue (postroom pilots add)."),
    click.option("--gpu-file", type=click.Path(dir_okay=False),
                 help="Read the list of GPUs from a file, again whenever it changes."),
    click.option(
        "--output-dir", "--output_dir", "output", default=DEFAULT_OUTPUT,
        show_default=True, help="Folder for the results.",
    ),
    click.option("--prefix", default="job_", show_default=True,
                 help="Start of the names of job folders."),
    click.option("--timeout", type=at_least(0.001), help="Time limit of each job: 90s, 30m, 2h."),
    click.option("--retries", type=click.IntRange(0), default=0, metavar="N",
                 help="Try a failed job N more times."),
    click.option("--grace", type=duration, default="10s", show_default=True,
                 help="Time between SIGTERM and SIGKILL."),
    click.option("--rerun", type=click.Choice(["all", "failed"]), default=None,
                 help="Run all lines again, or only failed ones.  [default: missing and failed]"),
    click.option("--stop-after-failures", "stop_after", type=click.IntRange(1), metavar="N",
                 help="Start no more jobs after N failures."),
    click.option("--keep-order", is_flag=True, help="Report jobs in the order of the lines."),
    click.option("--nice", type=click.IntRange(-20, 19), default=0, metavar="N",
                 help="Niceness of the jobs, -20 to 19."),
    click.option("--shell", default="bash", show_default=True, help="Run lines with SHELL -c."),
    click.option("--container", default="", metavar="IMAGE", help="Run lines in containers."),
    click.option("--memory", metavar="auto|SIZE",
                 help="Share GPUs: reserve SIZE per job; `auto` uses the measured peak."),
    click.option("--over", type=click.Choice(OVER),
                 help="If a job uses more than that: warn, limit or kill it.  [default: warn]"),
    click.option("--env", multiple=True, metavar="NAME=VALUE",
                 help="Set a variable for every job."),
    click.option("--before", default="", metavar="CMD", help="Run CMD before each job."),
    click.option("--after", default="", metavar="CMD",
                 help="Run CMD after each job, also after a failure."),
    click.option("--runner", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
                 help="Use the subclass of Runner in a Python file."),
    click.option("--snapshot", is_flag=True,
                 help="Run each job in its own copy of this folder, taken now."),
    click.option("--output-mib", type=click.IntRange(1), default=64, show_default=True, metavar="N",
                 help="Keep N MiB per log, from its start and its end."),
    click.option("--notify", multiple=True, metavar="CMD|URL",
                 help="Notify at the first failure and at the end; may be repeated."),
    click.option("--detach", is_flag=True, help="Run in the background."),
]  # fmt: skip


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `postroom run`."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


@click.command(context_settings=CONTEXT)
@click.argument("file", required=False)
@click.option("--job-file", "--job_file", "job_file", metavar="FILE", help="Same as FILE.")
@click.option("-c", "lines", multiple=True, metavar="CMD", help="Run CMD; may be repeated.")
@click.option("--yielder", "--job-yielder", "--job_yielder", metavar="FILE",
              help="Run what yielder() of a Python file yields.")  # fmt: skip
@run_options
def command(
    file: str | None,
    job_file: str | None,
    lines: tuple[str, ...],
    yielder: str | None,
    **options: Any,
) -> int:
    """Run every line of FILE as a shell command, on the slots of --gpus.

    \b
      postroom run jobs.txt --gpus 0,0,1     three slots: two on GPU 0, one on GPU 1
      postroom run jobs.txt --gpus 0,0,1     again: runs only missing and failed lines
      generate | postroom run - --gpus all   run lines as they arrive on stdin
      postroom run -c 'make a' -c 'make b' --gpus cpu,cpu

    Each line gets a folder in --output-dir with INFO, .OUT, .ERR and SUCCESS or FAILURE.
    """
    file = file or job_file
    if sum((file is not None, bool(lines), yielder is not None)) != 1:
        raise click.UsageError(
            "name a file of commands, or - for stdin, or give -c CMD or --yielder FILE"
        )
    known: list[CommandSpec] | None = None
    source: Iterable[CommandSpec]
    if yielder is not None:
        _must_exist(yielder)
        source = read_yielder(yielder)
    elif file == "-":
        source = read_lines(click.open_file("-", errors="surrogateescape"))
    elif file is not None:
        _must_exist(file)
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            source = known = list(read_lines(opened))
    else:
        source = known = [CommandSpec(line) for line in lines]
    code = run_batch(source, known, options)
    if yielder is None and options["runner"] is None:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """Exit at once: unloading all modules would take as long as twenty short lines.

    Only where no code of the user ran in this process, which might have exit handlers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_batch(
    source: Iterable[CommandSpec], known: list[CommandSpec] | None, options: dict[str, Any]
) -> int:
    """Run lines until all have ended; return the exit code."""
    if not options["output"]:
        raise PostroomError("--output-dir is empty: name a folder for the results")
    if options["pilots"] and options["memory"]:
        raise click.UsageError("--memory shares the GPUs of this host: leave it out with --pilots")
    listed = "all" if options["gpus"] is None else options["gpus"]
    away = options["gpu_file"] or (options["pilots"] and options["gpus"] is None)
    places = [] if away else parse_gpus(listed)
    output = os.path.abspath(options["output"])
    make_folder(output)
    again = [arg for arg in sys.argv[1:] if arg != "--detach"]
    if options["detach"]:
        return _detach(output, again)
    complete = completer(os.getcwd(), environment(options["env"]))
    packer = _packer(options, output, places)
    check = (InOrder() if packer is None else packer).check
    if known is not None:
        known = [check(line.check()) for line in known]
    checked = (check(line.check()) for line in source)
    _turn_signals_into_interrupts()
    with Master(f"{output}/.base", spin=False) as master, contextlib.ExitStack() as stack:
        sessions = Sessions(master.base, say=talk, options=COMMANDS_ONLY)
        view: BatchView
        if sys.stderr.isatty() and not options["keep_order"]:
            view = stack.enter_context(LiveView())
        else:
            view = PlainView(keep_order=options["keep_order"])
        pilots = None
        if options["pilots"]:
            from ..batch.batch_pilots import BatchPilots  # late: few batches need it

            pilots = BatchPilots(master.base, sessions, options["pilots"])
        snapshot = None
        if options["snapshot"]:
            from ..commands.code_snapshot import take_snapshot  # late: few batches need it

            snapshot = stack.enter_context(take_snapshot(os.getcwd(), master.base))
        notices = None
        if options["notify"]:
            from ..batch.batch_notices import BatchNotices

            view = notices = BatchNotices(options["notify"], master.base, view)
        batch = Batch(
            master,
            output,
            _batch_options(options, snapshot, lazy=known is None),
            sessions=sessions,
            view=view,
            runner=_load_runner(options["runner"]),
            packer=packer,
            pilots=pilots.most if pilots is not None else 0,
        )
        try:
            if pilots is not None:
                pilots.start()
            # Before the feed starts a thread: only a process with one thread may fork.
            if options["gpu_file"]:
                batch.watch_gpus(GpuFile(options["gpu_file"], say=talk, shared=packer is not None))
            elif packer is None:
                sessions.keep(places)
            feed: Source
            if known is not None:
                numbering = Numbering(complete)
                known = [numbering.number(line) for line in known]
                feed = Listed(known)
            else:
                feed = Feed(checked, complete=complete, wake=master.wake, ahead=1)
            batch.forget(known if options["stop_after"] is None else None)
            batch.run(feed)
            sessions.finish()
            if pilots is not None:
                pilots.end(now=False)
            master.rest()
        except KeyboardInterrupt:
            stack.close()
            if pilots is not None:
                pilots.end(now=True)
            talk("stopping; press Ctrl-C again to kill the jobs now")
            sessions.stop_now()
            write_results(output)
            talk(
                f"stopped: {batch.counts.done} jobs have ended and are kept, "
                f"{batch.outstanding} have not; continue with: {_shell(again)}"
            )
            return codes.INTERRUPTED
        except BaseException:
            if pilots is not None:
                pilots.end(now=True)
            sessions.stop_now()
            raise
        stack.close()
        write_results(output)
        if notices is not None:
            notices.tell_end()
        sessions.wait()
        if feed.error:
            talk(f"reading lines failed:\n{feed.error.rstrip()}")
        summary(batch, _command_line(again), sys.stderr)
        return codes.JOB_FAILED if batch.counts.failed or feed.error else codes.OK


def _turn_signals_into_interrupts() -> None:
    """Let SIGTERM and the end of the terminal stop a batch as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _packer(options: dict[str, Any], output: str, places: list[SlotSpec]) -> Packer | None:
    """Return the packer if --memory is given and there are GPUs."""
    memory = options["memory"]
    if memory is None:
        return None
    from ..batch.memory_packer import Packer, declared_mib  # late: it imports the GPU code
    from ..gpus.ledger.protocol import open_ledger
    from ..gpus.memory.profiles import Profiles

    declared_mib(memory)
    if options["gpu_file"]:
        places = GpuFile(options["gpu_file"]).changed() or []
    cards = cards_of(places)
    if not cards:
        talk("there is no GPU to share: --memory has no effect")
        return None
    profiles = Profiles().writable()
    return Packer(cards, memory, where=f" of {output}", ledger=open_ledger(), profiles=profiles)


def _batch_options(
    options: dict[str, Any], snapshot: CodeSnapshot | None, *, lazy: bool
) -> BatchOptions:
    defaults = CommandSpec(
        "",
        timeout_s=options["timeout"],
        retries=options["retries"],
        nice=options["nice"],
        shell=options["shell"],
        container=options["container"],
        over=options["over"] or "",
        grace_s=options["grace"],
        output_bytes=options["output_mib"] << 20,
        before=options["before"],
        after=options["after"],
    )
    return BatchOptions(
        defaults,
        prefix=options["prefix"],
        rerun=options["rerun"] or "",
        stop_after=options["stop_after"],
        snapshot=snapshot,
        ahead=1 if lazy else None,
    )


def _load_runner(path: str | None) -> Runner | None:
    if path is None:
        return None
    namespace: dict[str, Any] = {"__name__": "runner", "__file__": os.path.abspath(path)}
    with open(path, encoding="utf-8") as file:
        # The user's own program, which was named on the command line to be run.
        exec(compile(file.read(), path, "exec"), namespace)  # noqa: S102
    runners = [
        value
        for value in namespace.values()
        if isinstance(value, type) and issubclass(value, Runner) and value is not Runner
    ]
    if len(runners) != 1:
        raise PostroomError(f"{path} must define one subclass of postroom.batch.runner.Runner")
    return runners[0]()


def _detach(output: str, again: list[str]) -> int:
    """Start the same command in the background, independent of the terminal."""
    log = f"{output}/run.log"
    with open(log, "ab") as file:
        words = _verb(again)
        process = start_detached("postroom", *words, log=file.fileno(), cwd=os.getcwd())
    check_alive(process, log, fine=(codes.OK, codes.JOB_FAILED))
    click.echo(f"running as pid {process.pid}; log: {log}")
    click.echo(f"watch it: postroom attach {shlex.quote(output)};  stop it: kill {process.pid}")
    return codes.OK


def _verb(arguments: list[str]) -> list[str]:
    return arguments if _called_as_postroom() else ["run", *arguments]


def _called_as_postroom() -> bool:
    return os.path.basename(sys.argv[0]) != "hog"


def _command_line(arguments: list[str]) -> list[str]:
    return ["postroom" if _called_as_postroom() else "hog", *arguments]


def _shell(arguments: list[str]) -> str:
    return shlex.join(_command_line(arguments))


def _must_exist(path: str) -> None:
    if not os.path.isfile(path):
        if not os.path.exists(path):
            raise click.UsageError(f"there is no file {path!r}")
        raise click.UsageError(f"{path!r} is not a file; write - to read the lines from a pipe")
