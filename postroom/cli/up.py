"""`postroom up` and `postroom down`: the whole queue, with one command."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from dataclasses import dataclass

import click

from ..errors import PostroomError
from ..gpus.cards.gpu_list import parse_gpus
from ..queue import actions
from ..queue.queue_view import QueueView
from ..store.agents import PageInfo, read_page_info
from ..store.base import Base, create_base, open_base, own_queue
from ..store.files import LocalFiles, is_locked
from ..store.pilot_records import has_pilots
from ..store.snapshot import acting_master
from ..store.wanted_agents import WantedAgents, read_wanted
from ..system.processes import alive
from ..text.safe_text import printable
from .agents import wait_for_end, wait_for_start
from .master import is_down, start_scheduler
from .options import CONTEXT, base_argument
from .output import settle, talk
from .service import install, uninstall

FILES = LocalFiles()
# How long a scheduler that goes may take, and how often a service looks whether all live.
LEAVE_S = 10.0
LOOK_S = 1.0


@dataclass(frozen=True)
class Standing:
    """What is to live beside the agents, which the base itself names."""

    base: Base
    page: bool = True
    port: int | None = None
    shared: bool = False  # the page has a second token, for looking

    def start_missing(self) -> None:
        """Start the scheduler and the page, where they do not live."""
        if acting_master(FILES, self.base) is None:
            start_scheduler(self.base, "--kept")
            give_up_at = time.monotonic() + LEAVE_S
            while acting_master(FILES, self.base) is None and time.monotonic() < give_up_at:
                time.sleep(0.02)
        if self.page and page_of(self.base) is None:
            self._start_page()

    def _start_page(self) -> None:
        from .ui import open_page  # the page is an extra

        try:
            open_page(self.base, port=self.port, shared=self.shared)
        except PostroomError as error:
            talk(f"no page: {error}")


@click.command(context_settings=CONTEXT)
@base_argument
@click.option(
    "--gpus",
    metavar="LIST",
    help="Have agents on these GPUs, and on no others: 0,1 or 0,0 or all or cpu.  "
    "[default: those of last time; at first, all]",
)
@click.option(
    "--yield/--no-yield",
    "yields",
    default=None,
    help="When another user waits for a GPU: stop its job at once and requeue it, or release the "
    "GPU after the job.  [default: as last time; at first, after the job]",
)
@click.option("--no-page", is_flag=True, help="Do not serve the web page.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port of the page.")
@click.option(
    "--read-only", "shared", is_flag=True, help="Also print an address of the page for colleagues."
)
@click.option("--wait", "stay", is_flag=True, help="Stay, and restart what dies; for a service.")
@click.option("--install", "installs", is_flag=True, help="Start the queue after each reboot.")
@click.option("--uninstall", "uninstalls", is_flag=True, help="Do not start it after a reboot.")
def up(
    base: str,
    gpus: str | None,
    yields: bool | None,
    no_page: bool,
    port: int | None,
    shared: bool,
    stay: bool,
    installs: bool,
    uninstalls: bool,
) -> None:
    """Start your queue: a scheduler, an agent on each GPU, and a web page.

    Call it again at any time: it starts what is missing, and says what is running. An agent that
    dies is started again. It holds its GPU only while there are jobs.

    \b
      postroom up                            all GPUs; prints the address of the page
      postroom submit python train.py        queue a command, from any folder
      postroom down                          stop all, after the running jobs
      postroom up --install                  start it after each reboot (systemd)
      postroom up --yield                    give GPUs to others at once: jobs go on later
    """
    if installs and uninstalls:
        raise click.UsageError("choose one of --install and --uninstall")
    if uninstalls:
        uninstall(base)
        return
    opened = create_base(base)
    standing = Standing(opened, page=not no_page, port=port, shared=shared)
    page = page_of(opened) if shared and not no_page else None
    if page is not None and not page.read_token:
        raise PostroomError(f"the page runs without --read-only: kill {page.pid}, then try again")
    if installs:
        install(opened.root, gpus=gpus, yields=yields, page=not no_page, port=port)
    if stay:
        _stay(standing, gpus, yields)
        return
    bring_up(standing, gpus, yields)
    _report(opened)


def bring_up(standing: Standing, gpus: str | None, yields: bool | None = None) -> None:
    """Say which agents are wanted, and start what is missing."""
    base = standing.base
    with QueueView(base) as view:
        asked = _ask(view, gpus, yields)
        standing.start_missing()
        for answer in asked:
            give_up_at = time.monotonic() + LEAVE_S
            while not actions.wait_settled(view, answer, 0.2):
                standing.start_missing()  # the last scheduler may just have been leaving
                if time.monotonic() > give_up_at:
                    raise PostroomError(f"the scheduler does not answer: see {base.log}")
    wait_for_start(base, list(_wanted(base).agents), say=talk)


def _ask(view: QueueView, gpus: str | None, yields: bool | None) -> list[actions.ActionResult]:
    wanted, asked = _wanted(view.base), []
    # A login node of a cluster computes nothing itself, unless somebody says so: --gpus cpu.
    only_pilots = not wanted.agents and has_pilots(FILES, view.base) and not view.cards()
    if gpus is not None or not (wanted.agents or only_pilots):
        slots = {slot.agent: slot.gpu for slot in parse_gpus(gpus or "all", view.cards)}
        others = [agent for agent in wanted.agents if wanted.agents[agent] != slots.get(agent)]
        if others:
            asked.append(actions.remove_agents(view, others))
        if slots != wanted.agents:
            asked.append(actions.add_agents(view, gpus or "all"))
    if yields == wanted.yields:
        yields = None
    if asked or not wanted.up or yields is not None or view.read_state().requests:
        asked.append(actions.go_up(view, yields=yields))
    return asked


def _wanted(base: Base) -> WantedAgents:
    return read_wanted(FILES, base) or WantedAgents()


def _report(base: Base) -> None:
    master = acting_master(FILES, base)
    if master is not None:
        talk(f"scheduler of {base.root}: {master.pid_words}")
    page = page_of(base)
    if page is not None:
        click.echo(page.link)
        if page.read_token:
            talk("for those who may only look:")
            click.echo(page.read_link)
    named = "" if base.root == os.path.abspath(own_queue()) else f" -b {shlex.quote(base.root)}"
    talk(f"queue a command: postroom submit{named} python train.py")


def page_of(base: Base) -> PageInfo | None:
    """The page of a base, if it lives."""
    if not is_locked(FILES, base.page_lock):
        return None
    info = read_page_info(FILES, base)
    return info if info is not None and alive(info.process) else None  # else it just starts


# As a service


def _stay(standing: Standing, gpus: str | None, yields: bool | None) -> None:
    """Keep the scheduler and the page alive, until told to stop, or until the queue is down."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    bring_up(standing, gpus, yields)
    _report(standing.base)
    sys.stdout.flush()
    while not stopping.wait(LOOK_S):
        if is_down(FILES, standing.base):
            break
        standing.start_missing()
    else:
        # The machine is about to go: running jobs save their state, and are queued again.
        bring_down(standing.base, now=True)
    _stop_page(standing.base)


@click.command(context_settings=CONTEXT)
@base_argument
@click.option("--now", is_flag=True, help="Stop running jobs now, and requeue them.")
def down(base: str, now: bool) -> None:
    """Stop your queue: its agents after their running jobs, the scheduler and the page.

    Queued jobs stay queued. Ctrl-C ends only this command: the queue still stops.

    \b
      postroom down
      postroom down --now
    """
    opened = open_base(base)
    bring_down(opened, now=now)
    _stop_page(opened)


def bring_down(base: Base, *, now: bool) -> None:
    """End the agents that are kept, and wait for the scheduler to follow."""
    with QueueView(base) as view:
        settle(view, actions.go_down(view, preempt=now), here=True)
    wait_for_end(base, list(_wanted(base).agents))
    give_up_at = time.monotonic() + LEAVE_S
    while (master := acting_master(FILES, base)) is not None:
        if time.monotonic() > give_up_at:
            talk(f"the scheduler ({master.pid_words}) was started by hand, and goes on")
            return
        time.sleep(0.05)


def _stop_page(base: Base) -> None:
    page = page_of(base)
    if page is None:
        return
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(page.pid)
        try:
            # Asked again with the descriptor open: now no other process can get the pid.
            if page_of(base) == page:
                signal.pidfd_send_signal(fd, signal.SIGTERM)
        finally:
            os.close(fd)
    give_up_at = time.monotonic() + LEAVE_S
    while page_of(base) is not None:
        if time.monotonic() > give_up_at:
            raise PostroomError(f"the page ({printable(page.pid_words)}) does not stop")
        time.sleep(0.05)
    talk("the page stopped")
