"""`postroom run`: a file of shell lines over a list of GPUs. Installed as `hog`, too."""

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
from ..commands.code_snapshot import take_snapshot
from ..commands.command_source import (
    Feed,
    Listed,
    Numbering,
    Source,
    read_lines,
    read_yielder,
)
from ..commands.spec import CommandSpec
from ..errors import PostroomError
from ..gpus.cards.gpu_list import GpuFile, SlotSpec, cards_of, parse_gpus
from ..master import Master
from ..session.sessions import COMMANDS_ONLY, Sessions
from ..system.own_python import start_detached
from ..text.values import environment
from . import codes

if TYPE_CHECKING:
    from ..batch.memory_packer import Packer

DEFAULT_OUTPUT = "postroom_run"

OPTIONS = [
    click.option("--gpus", metavar="LIST", help="0,0,1 or all or 2-5 or 0,1;2,3 or cpu."),
    click.option("--gpu-file", type=click.Path(dir_okay=False), help="Read again when changed."),
    click.option(
        "--output-dir", "--output_dir", "output", default=DEFAULT_OUTPUT, show_default=True
    ),
    click.option("--prefix", default="job_", show_default=True, help="Of the job folders."),
    click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S"),
    click.option("--retries", type=click.IntRange(0), default=0, help="After a failure."),
    click.option("--grace", type=click.FloatRange(0), default=10.0, metavar="S", show_default=True,
                 help="From SIGTERM to SIGKILL."),
    click.option("--rerun", type=click.Choice(["all", "failed"]), default=None),
    click.option("--stop-after-failures", "stop_after", type=click.IntRange(1), metavar="N"),
    click.option("--keep-order", is_flag=True, help="Report in the order of the lines."),
    click.option("--nice", type=click.IntRange(-20, 19), default=0),
    click.option("--shell", default="bash", show_default=True, help="SHELL -c runs the lines."),
    click.option("--memory", metavar="auto|SIZE",
                 help="Jobs share cards: so much of one for each, or what its kind needs."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="For every job."),
    click.option("--before", default="", metavar="CMD", help="Run before each command."),
    click.option("--after", default="", metavar="CMD", help="Run after it, however it ended."),
    click.option("--runner", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
                 help="A Python file with a subclass of Runner."),
    click.option("--snapshot", is_flag=True, help="Run in a copy of this folder, as it is now."),
    click.option("--output-mib", type=click.IntRange(1), default=64, show_default=True,
                 help="Of each log so much is kept: its beginning and its end."),
    click.option("--notify", metavar="CMD|URL", help="Tell when the first fails, and at the end."),
    click.option("--detach", is_flag=True, help="Go on in the background."),
]  # fmt: skip


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `postroom run`."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False)
@click.option("--job-file", "--job_file", "job_file", metavar="FILE", help="The same as FILE.")
@click.option("-c", "lines", multiple=True, metavar="CMD", help="A command; repeat for more.")
@click.option("--yielder", "--job-yielder", "--job_yielder", metavar="FILE",
              help="A Python file whose yielder() yields commands.")  # fmt: skip
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
      postroom run jobs.txt --gpus 0,0,1     three slots: two on card 0, one on card 1
      generate | postroom run - --gpus all   lines as they come
      postroom run -c 'make a' -c 'make b' --gpus cpu,cpu
      postroom run jobs.txt --gpus 0,0,1     again: only what is missing or failed

    Each line has a folder below --output-dir with INFO, .OUT, .ERR and SUCCESS or FAILURE.
    """
    file = file or job_file
    if sum((file is not None, bool(lines), yielder is not None)) != 1:
        raise click.UsageError("name a file of commands, or -, or -c CMD, or --yielder FILE")
    known: list[CommandSpec] | None = None
    source: Iterable[CommandSpec]
    if yielder is not None:
        _must_exist(yielder)
        source = read_yielder(yielder)
    elif file == "-":
        source = read_lines(sys.stdin)
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
    """End at once: to take all modules apart takes as long as twenty short lines.

    Only where no code of others was run, which may have something to do in the end.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_batch(
    source: Iterable[CommandSpec], known: list[CommandSpec] | None, options: dict[str, Any]
) -> int:
    """Run lines to their end; return the exit code."""
    output = os.path.abspath(options["output"])
    os.makedirs(output, exist_ok=True)
    again = [arg for arg in sys.argv[1:] if arg != "--detach"]
    if options["detach"]:
        return _detach(output, again)
    complete = completer(os.getcwd(), environment(options["env"]))
    batch_options = _batch_options(options, output, lazy=known is None)
    say = _say
    packer = _packer(options, output)
    check = (InOrder() if packer is None else packer).check
    if known is not None:
        known = [check(line) for line in known]
    checked = (check(line) for line in source)
    _turn_signals_into_interrupts()
    with Master(f"{output}/.base", spin=False) as master, contextlib.ExitStack() as stack:
        sessions = Sessions(master.base, say=say, options=COMMANDS_ONLY)
        view: BatchView
        if sys.stderr.isatty() and not options["keep_order"]:
            view = stack.enter_context(LiveView())
        else:
            view = PlainView(keep_order=options["keep_order"])
        teller = None
        if options["notify"]:
            from ..batch.batch_notices import BatchNotices  # which knows how to talk to the world

            view = teller = BatchNotices(options["notify"], master.base, view)
        batch = Batch(
            master,
            output,
            batch_options,
            sessions=sessions,
            view=view,
            runner=_load_runner(options["runner"]),
            packer=packer,
        )
        try:
            # Before a feed has its thread: a process of one thread may fork its sessions.
            if options["gpu_file"]:
                batch.watch_gpus(GpuFile(options["gpu_file"], _known_gpus))
            elif packer is None:
                sessions.keep(_places(options["gpus"]))
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
            master.rest()
        except KeyboardInterrupt:
            stack.close()
            say("stopping; again to kill at once")
            sessions.stop_now()
            write_results(output)
            say(
                f"stopped: {batch.counts.done} jobs of this call are done and kept, "
                f"{batch.outstanding} are not; go on with: {_shell(again)}"
            )
            return codes.INTERRUPTED
        except BaseException:
            sessions.stop_now()
            raise
        stack.close()
        write_results(output)
        if teller is not None:
            teller.tell_end()
        sessions.wait()
        if feed.error:
            say(f"the lines ended early:\n{feed.error.rstrip()}")
        summary(batch, _words(again), sys.stderr)
        return codes.JOB_FAILED if batch.counts.failed or feed.error else codes.OK


def _turn_signals_into_interrupts() -> None:
    """Let SIGTERM and the end of the terminal stop a batch as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _packer(options: dict[str, Any], output: str) -> Packer | None:
    """What has lines share cards by memory, if that is asked for and there are cards."""
    memory = options["memory"]
    if memory is None:
        return None
    from ..batch.memory_packer import Packer, declared_mib  # with all that knows of cards
    from ..gpus.ledger.protocol import open_ledger
    from ..gpus.memory.profiles import Profiles

    declared_mib(memory)
    if options["gpu_file"]:
        cards = cards_of(GpuFile(options["gpu_file"], _known_gpus).changed() or [])
    else:
        cards = cards_of(_places(options["gpus"]))
    if not cards:
        _say("no GPU to share: --memory has no effect")
        return None
    return Packer(cards, memory, where=f" of {output}", ledger=open_ledger(), profiles=Profiles())


def _batch_options(options: dict[str, Any], output: str, *, lazy: bool) -> BatchOptions:
    snapshot = None
    if options["snapshot"]:
        here = os.getcwd()
        snapshot = here, take_snapshot(here, output)
    defaults = CommandSpec(
        "",
        timeout_s=options["timeout"],
        retries=options["retries"],
        nice=options["nice"],
        shell=options["shell"],
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


def _known_gpus() -> list[str]:
    from ..gpus.cards import inventory

    return [str(card.index) for card in inventory.cards() if not card.problem]


def _places(gpus: str | None) -> list[SlotSpec]:
    return parse_gpus("all" if gpus is None else gpus, _known_gpus)


def _load_runner(path: str | None) -> Runner | None:
    if path is None:
        return None
    room: dict[str, Any] = {"__name__": "runner", "__file__": os.path.abspath(path)}
    with open(path, encoding="utf-8") as file:
        # The user's own program, which was named on the command line to be run.
        exec(compile(file.read(), path, "exec"), room)  # noqa: S102
    kinds = [
        kind
        for kind in room.values()
        if isinstance(kind, type) and issubclass(kind, Runner) and kind is not Runner
    ]
    if len(kinds) != 1:
        raise PostroomError(f"{path} must define one subclass of postroom.batch.runner.Runner")
    return kinds[0]()


def _detach(output: str, again: list[str]) -> int:
    """Start the same command in the background, where the terminal's end does not reach it."""
    log = f"{output}/run.log"
    with open(log, "ab") as file:
        words = _verb(again)
        process = start_detached("postroom", *words, log=file.fileno(), cwd=os.getcwd())
    click.echo(f"running as pid {process.pid}; log: {log}")
    click.echo(f"show it: postroom attach {shlex.quote(output)};  stop it: kill {process.pid}")
    return codes.OK


def _verb(arguments: list[str]) -> list[str]:
    return arguments if _called_as_postroom() else ["run", *arguments]


def _called_as_postroom() -> bool:
    return os.path.basename(sys.argv[0]) != "hog"


def _words(arguments: list[str]) -> list[str]:
    return ["postroom" if _called_as_postroom() else "hog", *arguments]


def _shell(arguments: list[str]) -> str:
    return shlex.join(_words(arguments))


def _must_exist(path: str) -> None:
    if not os.path.isfile(path):
        raise click.UsageError(f"there is no file {path!r}")


def _say(text: str) -> None:
    click.echo(text, err=True)
