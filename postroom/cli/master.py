"""`postroom master`, and `python master.py`: run the scheduler of a base."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence

import click

from ..errors import BadFileError, PostroomError
from ..master import Master
from ..queue.notices import Notifier
from ..queue.notify import check_target
from ..queue.use_recorder import record_in_background
from ..session.sessions import Sessions
from ..store.base import Base, create_base
from ..store.files import LocalFiles
from ..store.journal import Journal
from ..store.project_shares import half_life_s
from ..store.requests import pending
from ..store.snapshot import acting_master, living_agent
from ..store.wanted_agents import read_wanted
from ..system.own_python import start_detached
from .options import CONTEXT, base_argument

# A scheduler should print something within this time of its start.
START_S = 30.0
# How long a scheduler that ends waits for what it records; nothing depends on it.
RECORD_S = 2.0
# How often a scheduler of `postroom up` looks whether the queue is down.
DOWN_S = 0.5


@click.command(context_settings=CONTEXT)
@base_argument
@click.option("--detach", is_flag=True, help="Run in the background; survives the terminal.")
@click.option(
    "--notify",
    multiple=True,
    metavar="CMD|URL",
    help="Send a message when a run fails or is done; may be repeated.",
)
@click.option("--kept", is_flag=True, hidden=True, help="End when the queue goes down.")
def command(base: str, detach: bool, notify: tuple[str, ...], kept: bool) -> None:
    """Run the scheduler of BASE: send jobs to its agents, until Ctrl-C.

    Several may run for one base: one is active, the others take over when it dies. Stopping it
    loses nothing: running jobs go on, and the next scheduler sends the rest.

    \b
      postroom master ./base --detach
      postroom agents add ./base 0,1
      postroom submit -b ./base -- python train.py
    """
    for target in notify:
        check_target(target)
    half_life_s()  # a wrong one is an error at once
    if detach:
        _detach(create_base(base), [word for target in notify for word in ("--notify", target)])
        return
    look_at = 0.0
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with Master(base, sessions=Sessions(create_base(base))) as master:
        click.echo(f"scheduler of {master.base.root}; log: {master.base.log}", err=True)
        said = False
        journal = Journal(master.base, "notifier")
        notifier = Notifier(LocalFiles(), master.base, journal, *notify)

        def stop() -> bool:
            nonlocal said, look_at
            if kept and time.monotonic() >= look_at:
                look_at = time.monotonic() + DOWN_S
                if is_down(LocalFiles(), master.base):
                    stopping.set()
            if master.acting != said:
                said = master.acting
                click.echo(standing(said, master.agents()), err=True)
            notifier.step(time.monotonic())
            return stopping.is_set()

        recording = record_in_background(master.base, stopping, acting=lambda: master.acting)
        master.serve(stop)
        recording.join(RECORD_S)
    click.echo("stopped", err=True)
    sys.exit(0)


def is_down(files: LocalFiles, base: Base) -> bool:
    """Whether the queue was told to go down, and its agents have gone."""
    with contextlib.suppress(BadFileError):
        wanted = read_wanted(files, base)
        if wanted is not None and not wanted.up and not pending(files, base):
            return not any(living_agent(files, base, agent) for agent in wanted.agents)
    return False


def standing(active: bool, agents: Sequence[str]) -> str:
    """Say whether this scheduler is the active one."""
    if not active:
        return "no longer active; the log says why. It becomes active again as soon as it can"
    return f"active; agents: {', '.join(agents) or 'none yet'}"


def _detach(base: Base, options: list[str]) -> None:
    """Start a scheduler in the background, and say how to stop it."""
    acting = acting_master(LocalFiles(), base)
    if acting is not None:
        click.echo(
            f"a scheduler is running already ({acting.pid_words}); "
            "this one takes over when it ends",
            err=True,
        )
    pid = start_scheduler(base, *options)
    click.echo(f"scheduler of {base.root} started (pid {pid}); stop: kill {pid}", err=True)
    click.echo(f"see: postroom status -b {shlex.quote(base.root)}", err=True)


def start_scheduler(base: Base, *options: str) -> int:
    """Start a scheduler in the background; return its pid."""
    path = f"{os.path.dirname(base.log)}/master.txt"
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        process = start_detached("postroom", "master", base.root, *options, log=log)
        give_up_at = time.monotonic() + START_S
        while not os.fstat(log).st_size:
            if process.poll() is not None or time.monotonic() > give_up_at:
                break
            time.sleep(0.02)
        if process.poll() is not None:
            words = os.pread(log, 4096, 0).decode(errors="replace").strip()
            raise PostroomError(words or f"the scheduler did not start; see {path}")
    finally:
        os.close(log)
    return process.pid
