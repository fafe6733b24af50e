"""`postroom attach`: watch a batch that was started elsewhere."""

from __future__ import annotations

import os
import sys
import time

import click

from ..batch.batch_view import BatchState, draw, headline, slot_states
from ..errors import PostroomError
from ..master import Master
from ..store.agents import list_agents
from ..store.base import Base, open_base
from ..store.files import LocalFiles
from ..store.runs import list_runs
from ..store.snapshot import snapshot
from . import codes
from .options import CONTEXT
from .run import DEFAULT_OUTPUT

LOOK_S = 0.5


@click.command(context_settings=CONTEXT)
@click.argument("output", default=DEFAULT_OUTPUT)
@click.option("--once", is_flag=True, help="Show the current state and exit.")
def command(output: str, once: bool) -> int:
    """Watch the batch in folder OUTPUT until it ends. Ctrl-C stops watching, not the batch.

    \b
      postroom run jobs.txt --gpus all --detach
      postroom attach
    """
    files = LocalFiles()
    base = Base(f"{output}/.base")
    runs = list_runs(files, open_base(base.root, write=False)) if os.path.lexists(base.root) else []
    if not runs:
        raise PostroomError(f"there is no batch in {output!r}; start one: postroom run jobs.txt")
    live = sys.stdout.isatty() and not once
    if live:
        from rich.console import Console
        from rich.live import Live

        screen = Live(console=Console(), auto_refresh=False)
        screen.start()
    master = Master(base.root)  # reads only: it schedules nothing, and keeps no run alive
    try:
        while True:
            pool = master.look(runs[-1])
            agents = list_agents(files, base)
            slots = slot_states(base, pool, [(agent, "") for agent in agents])
            waiting = len(pool) - pool.n_done - sum(bool(slot.job) for slot in slots)
            state = BatchState(slots, pool.n_done, pool.n_failed, 0, waiting, False, 0.0, None)
            ended = snapshot(base, runs=False).master_pid is None
            if live:
                screen.update(draw(state), refresh=True)
            else:
                click.echo(headline(state))
            if once or ended:
                return codes.JOB_FAILED if pool.n_failed else codes.OK
            time.sleep(LOOK_S)
    finally:
        if live:
            screen.stop()
        master.close()
        if not os.path.isdir(base.root):
            click.echo("the output folder was removed", err=True)
