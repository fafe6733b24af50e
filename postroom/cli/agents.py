"""`postroom agents`, and `python agent.py`: start, stop and list the agents of a base."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import click

from ..gpus.cards.gpu_list import SlotSpec, parse_gpus
from ..queue import actions
from ..queue.queue_view import QueueView
from ..session.sessions import Sessions
from ..session.slots import choose_gpus
from ..store.base import Base, create_base, open_base, up_command
from ..store.files import LocalFiles
from ..store.snapshot import AgentStatus, living_agent, snapshot
from ..system.processes import pid_namespace
from ..text.durations import format_duration
from .options import (
    CONTEXT,
    as_json,
    base_argument,
    base_option,
    positional_base,
    split_base,
)
from .output import print_json, print_table, settle

# How long an agent should take to start, at most.
START_S = 20.0
GPUS = "GPUs: 0,0,1 or 2-5 or all or 0,1;2,3 or cpu."
_agents_argument = click.argument("words", nargs=-1, metavar="[BASE] [AGENT...]")
_now_option = click.option("--now", is_flag=True, help="Stop now; the running job is requeued.")


@click.group(context_settings=CONTEXT)
def command() -> None:
    """Start, stop and list the agents of a base: the processes that run jobs, one per GPU.

    \b
      postroom agents start 4 ./base       start one agent on each of four GPUs
      postroom agents list ./base          list agents and what they are doing
      postroom agents add ./base 2,3       add agents on two more GPUs
      postroom agents drain ./base 2       give agent 2 no more jobs; `fill` reverses it
      postroom agents stop ./base          stop all agents after their current jobs
      postroom agents stop ./base 2 --now  stop agent 2 now; its job is requeued

    BASE is a folder; without it, every verb takes -b BASE, $POSTROOM_BASE or your own queue.
    """


@command.command()
@click.argument("words", nargs=-1, metavar="[COUNT] [BASE]")
@click.option("--gpus", metavar="LIST", help=GPUS)
@click.option(
    "--yield",
    "yields",
    is_flag=True,
    help="Use idle GPUs only: when another user wants one, stop the job, requeue it and release "
    "the GPU.",
)
@base_option
def start(words: tuple[str, ...], gpus: str | None, yields: bool, base: str) -> None:
    """Start COUNT agents, one GPU each, in the background, with torch loaded for Python jobs.

    Agents that are already running are kept; only the missing ones are started.

    \b
      postroom agents start 4 ./base
      postroom agents start --gpus 0,0,1
    """
    count, rest = (words[:1], words[1:]) if gpus is None else ((), words)
    if len(rest) > 1 or (gpus is None and not count):
        raise click.UsageError("write `start COUNT [BASE]`, or name GPUs with --gpus 0,0,1")
    if rest:
        base = positional_base(rest[0])
    if gpus is not None:
        slots = parse_gpus(gpus)
    elif not count[0].isdecimal() or not int(count[0]):
        raise click.UsageError(f"{count[0]!r} is not a number of agents: write start 4 ./base")
    else:
        slots = [SlotSpec(gpu, gpu) for gpu in choose_gpus(int(count[0]), say=click.echo)]
    options = {"rest": True, "yields": True} if yields else {}
    Sessions(create_base(base), say=click.echo, options=options).start(slots, outlive=True)


@command.command()
@_agents_argument
@_now_option
@base_option
def stop(words: tuple[str, ...], now: bool, base: str) -> None:
    """Stop agents after their current jobs; without AGENT, all of them.

    Agents of `agents add` are removed: the scheduler does not start them again.

    \b
      postroom agents stop ./base 2
    """
    base, agents = split_base(base, words)
    _stop(open_base(base), agents, now=now)


def _stop(base: Base, agents: Sequence[str], *, now: bool) -> None:
    """Stop agents, all if none is named, and wait for their end."""
    seen = [agent for agent in snapshot(base, runs=False).agents if agent.state != "dead"]
    agents = agents or [agent.agent for agent in seen]
    kept = [agent.agent for agent in seen if agent.kept and agent.agent in agents]
    if not agents:
        click.echo("no agent is running")
    if kept:
        with QueueView(base) as view:
            settle(view, actions.remove_agents(view, kept, now), here=True)
        wait_for_end(base, kept)
    if by_hand := [agent for agent in agents if agent not in kept]:
        Sessions(base, say=click.echo).stop(by_hand, now=now)


def wait_for_end(base: Base, agents: Sequence[str]) -> None:
    """Wait until agents have left by themselves, and say what the last of them still do."""
    files = LocalFiles()
    told_at = time.monotonic() + 2.0
    while left := [agent for agent in agents if living_agent(files, base, agent) is not None]:
        if time.monotonic() > told_at:
            told_at = math.inf
            click.echo(f"waiting for the running jobs of agents {', '.join(left)}", err=True)
        time.sleep(0.05)
    click.echo(f"agents {', '.join(agents)} stopped")


@command.command()
@click.argument("words", nargs=-1, metavar="[BASE] GPUS")
@base_option
def add(words: tuple[str, ...], base: str) -> None:
    """Keep an agent on each of GPUS from now on, for the queue.

    The scheduler starts it again when it dies, until it is removed. It holds its GPU only while it
    has jobs, and half a minute longer (POSTROOM_REST=10m, or never). It loads torch only with its
    first Python job. Agents of `agents start` do none of this.

    \b
      postroom agents add ./base 2,3       one agent on each of two GPUs
      postroom agents add ./base 0,0       two agents on one GPU
      postroom agents add ./base "0,1;2,3" two agents with two GPUs each
      postroom agents add ./base cpu       one agent on the CPU
    """
    if len(words) not in (1, 2):
        raise click.UsageError("write `add [BASE] GPUS`, such as `add ./base 2,3`")
    *folder, gpus = words
    if folder:
        base = positional_base(folder[0])
    opened = create_base(base)
    with QueueView(opened) as view:
        settle(view, actions.add_agents(view, gpus), here=True)
    wait_for_start(opened, [slot.agent for slot in parse_gpus(gpus)])


def wait_for_start(
    base: Base, agents: Sequence[str], *, say: Callable[[str], None] = click.echo
) -> None:
    """Wait until agents live, for a while, and say which do not."""
    give_up_at = time.monotonic() + START_S
    while True:
        seen = {agent.agent: agent for agent in snapshot(base, runs=False).agents}
        states = {agent: seen[agent].state if agent in seen else "missing" for agent in agents}
        late = [agent for agent in agents if states[agent] in ("missing", "dead", "starting")]
        if not late or time.monotonic() > give_up_at:
            break
        time.sleep(0.05)
    for agent in agents:
        if agent in late:
            note = seen[agent].note if agent in seen else ""
            say(f"agent {agent} is not ready yet: {note or 'no word from it'}")
        else:
            more = ": free for others until there is work" if states[agent] == "resting" else ""
            say(f"agent {agent} is {states[agent]} ({seen[agent].gpu_name}{more})")


@command.command()
@_agents_argument
@_now_option
@base_option
def drain(words: tuple[str, ...], now: bool, base: str) -> None:
    """Give agents no more jobs, but keep them running; without AGENT, all of them.

    \b
      postroom agents drain ./base 2
    """
    base, agents = split_base(base, words)
    with QueueView(open_base(base)) as view:
        settle(view, actions.drain(view, agents, now))


@command.command()
@_agents_argument
@base_option
def fill(words: tuple[str, ...], base: str) -> None:
    """Give drained agents jobs again; without AGENT, all of them.

    \b
      postroom agents fill ./base 2
    """
    base, agents = split_base(base, words)
    with QueueView(open_base(base)) as view:
        settle(view, actions.fill(view, agents))


@command.command()
@click.argument("words", nargs=-1, metavar="[BASE] AGENT...")
@_now_option
@base_option
def remove(words: tuple[str, ...], now: bool, base: str) -> None:
    """Stop the named agents after their current jobs.

    \b
      postroom agents remove ./base 2
    """
    base, agents = split_base(base, words)
    if not agents:
        raise click.UsageError("name the agents to remove, such as `remove ./base 2`")
    _stop(open_base(base), agents, now=now)


@command.command(name="list")
@as_json
@base_argument
def list_(base: str, json_: bool) -> None:
    """List agents: GPU, state, current job and number of finished jobs.

    \b
      postroom agents list ./base
    """
    agents = snapshot(open_base(base, write=False), runs=False).agents
    if json_:
        print_json(agents)
    elif agents:
        print_table([["agent", "GPU", "state", "job", "done", "pid", "up"], *map(_row, agents)])
    else:
        click.echo(f"no agents; start one on each GPU: {up_command(base)}")


def _row(agent: AgentStatus) -> list[str]:
    job = f"{agent.run}/{agent.job}" if agent.run and agent.job is not None else "-"
    up = format_duration(time.time() - agent.since) if agent.state != "dead" else "-"
    pid = str(agent.pid) if agent.pid_namespace == pid_namespace() else f"{agent.pid} @{agent.host}"
    done = str(agent.done)
    state = f"{agent.state}: {agent.note}" if agent.note else agent.state
    return [agent.agent, agent.gpu_name or "-", state, job, done, pid, up]
