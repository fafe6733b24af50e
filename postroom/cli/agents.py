"""`postroom agents`, and `python agent.py`: start, stop and list the sessions of a base."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from ..gpus.cards import inventory
from ..gpus.cards.gpu_list import SlotSpec, parse_gpus
from ..queue import actions
from ..queue.queue_view import QueueView
from ..session.sessions import Sessions
from ..session.slots import choose_gpus
from ..store.base import create_base, open_base
from ..store.snapshot import AgentStatus, snapshot
from .queue_options import settle


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Start, stop and list the agents of a base.

    \b
      postroom agents start 4 ./base         one agent on each of four GPUs
      postroom agents list ./base            the agents, and what they do
      postroom agents stop ./base            stop all, after their running jobs
      postroom agents stop ./base 2 --now    stop agent 2 now
      postroom agents add ./base 2,3         two GPUs more
      postroom agents drain ./base 2         no more work for agent 2, until `fill`
      postroom agents remove ./base 2        stop agent 2 after its running job
    """


@command.command()
@click.argument("words", nargs=-1, metavar="[COUNT] BASE")
@click.option("--gpus", metavar="LIST", help="Cards, as in 0,0,1 or 2-5 or all or 0,1;2,3 or cpu.")
def start(words: tuple[str, ...], gpus: str | None) -> None:
    """Start COUNT agents on BASE, a GPU each, detached from the terminal.

    Agents that live already are left as they are; only what is missing is started.

    \b
      postroom agents start 4 ./base
      postroom agents start ./base --gpus 0,0,1
    """
    if len(words) == 2 and gpus is None:
        count, base = words
        if not count.isdecimal() or not int(count):
            raise click.UsageError(f"{count!r} is no number of agents: write start 4 ./base")
        slots = [SlotSpec(gpu, gpu) for gpu in choose_gpus(int(count), say=click.echo)]
    elif len(words) == 1 and gpus is not None:
        (base,) = words
        slots = _slots(gpus)
    else:
        raise click.UsageError("say how many agents to start, or name cards with --gpus 0,0,1")
    Sessions(create_base(base), say=click.echo).start(slots, outlive=True)


@command.command()
@click.argument("base")
@click.argument("agents", nargs=-1)
@click.option("--now", is_flag=True, help="Stop now; the running job is requeued.")
def stop(base: str, agents: tuple[str, ...], now: bool) -> None:
    """Stop the AGENTS of BASE (all of them, if none is named)."""
    opened = open_base(base)
    known = [agent.agent for agent in snapshot(opened, runs=False).agents if agent.state != "dead"]
    if not (agents or known):
        click.echo("no agent lives")
    Sessions(opened, say=click.echo).stop(agents or known, now=now)


@command.command()
@click.argument("base")
@click.argument("gpus")
def add(base: str, gpus: str) -> None:
    """Add a session to BASE for each of GPUS that has none.

    \b
      postroom agents add ./base 2,3       a session on each of two cards
      postroom agents add ./base 0,0       two sessions on one card
      postroom agents add ./base "0,1;2,3" two sessions with two cards each
      postroom agents add ./base cpu       one on the CPU
    """
    Sessions(create_base(base), say=click.echo).start(_slots(gpus), outlive=True)


@command.command()
@click.argument("base")
@click.argument("agents", nargs=-1)
@click.option("--now", is_flag=True, help="Stop now; the running jobs are requeued.")
def drain(base: str, agents: tuple[str, ...], now: bool) -> None:
    """Give the AGENTS of BASE (all of them, if none is named) no more work; they stay."""
    with QueueView(open_base(base)) as view:
        settle(view, actions.drain(view, agents, now), json_=False)


@command.command()
@click.argument("base")
@click.argument("agents", nargs=-1)
def fill(base: str, agents: tuple[str, ...]) -> None:
    """Give the AGENTS of BASE (all of them, if none is named) work again."""
    with QueueView(open_base(base)) as view:
        settle(view, actions.fill(view, agents), json_=False)


@command.command()
@click.argument("base")
@click.argument("agents", nargs=-1, required=True)
@click.option("--now", is_flag=True, help="Stop now; the running job is requeued.")
def remove(base: str, agents: tuple[str, ...], now: bool) -> None:
    """Take AGENTS away from BASE, after the jobs in hand."""
    Sessions(open_base(base), say=click.echo).stop(agents, now=now)


@command.command(name="list")
@click.argument("base")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts.")
def list_(base: str, as_json: bool) -> None:
    """Show the agents of BASE: their GPU, state, job in hand and jobs done."""
    agents = snapshot(open_base(base, write=False), runs=False).agents
    if as_json:
        click.echo(json.dumps([asdict(agent) for agent in agents], indent=1))
        return
    if not agents:
        click.echo(f"no agents; start some: postroom agents start 1 {base}")
        return
    rows = [["agent", "GPU", "state", "job", "done", "pid", "up"], *map(_row, agents)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def _slots(gpus: str) -> list[SlotSpec]:
    def known() -> list[str]:
        return [str(card.index) for card in inventory.cards() if not card.problem]

    return parse_gpus(gpus, known)


def _row(agent: AgentStatus) -> list[str]:
    job = f"{agent.run}/{agent.job}" if agent.run and agent.job is not None else "-"
    up = f"{int(time.time() - agent.since)} s" if agent.state != "dead" else "-"
    done, pid = str(agent.done), str(agent.pid)
    return [agent.agent, agent.gpu_name or "-", agent.state, job, done, pid, up]
