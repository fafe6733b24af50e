"""`postroom status`: the whole queue at one look."""

from __future__ import annotations

import click

from ..queue.queue_view import QueueView
from ..queue.rows import PENDING, AgentView, CardView, Overview
from ..text.memory_sizes import from_mib
from .queue_options import CONTEXT, as_json, in_base, print_jobs, print_json, table

SHOWN = 8


@click.command(context_settings=CONTEXT)
@as_json
@in_base
def command(view: QueueView, json_: bool) -> None:
    """Show the queue: cards, what runs, what is next, what failed, and today's figures.

    \b
      postroom status
      postroom status --json | jq .counts
    """
    seen = view.overview()
    if json_:
        print_json(seen)
        return
    print_head(seen)
    if seen.cards:
        click.echo("\ncards")
        table(card_rows(seen), indent="  ")
    for title, rows, more in (
        ("running", seen.running, len(seen.running)),
        ("next", seen.queued[:SHOWN], seen.counts.get("queued", 0)),
        ("failed", seen.failed[:SHOWN], len(seen.failed)),
    ):
        if rows:
            click.echo(f"\n{title}" + (f" ({len(rows)} of {more})" if more > len(rows) else ""))
            print_jobs(rows, indent="  ")
    if seen.failed:
        click.echo("\nread why: postroom show JOB; try again: postroom rerun --failed")


def print_head(seen: Overview) -> None:
    """Print the figures."""
    for line in head(seen):
        click.echo(line)


def head(seen: Overview) -> list[str]:
    """The figures, in three lines or four."""
    alive = [agent for agent in seen.agents if agent.state != "dead"]
    drained = sum(agent.drained for agent in alive)
    agents = f"{len(alive)} agent{'' if len(alive) == 1 else 's'}"
    master = f"Master {seen.master_pid}" if seen.master_pid else "NO MASTER ACTS"
    words = [master, agents + (f" ({drained} drained)" if drained else "")]
    words += ["PAUSED"] if seen.paused else []
    if seen.pending_requests:
        words.append(f"{seen.pending_requests} requests wait for a Master")
    words.append(seen.base)  # last: it may be long
    counts = [f"{seen.counts.get('running', 0) + seen.counts.get('stopping', 0)} running"]
    counts += [f"{seen.counts[state]} {state}" for state in PENDING if seen.counts.get(state)]
    lines = [
        ", ".join(words),
        ", ".join(counts),
        f"today {seen.done_today} ended, {seen.failed_today} of them failed; "
        f"{seen.rate_per_hour:.0f} in the last hour",
    ]
    waits = any(seen.counts.get(state) for state in PENDING)
    if waits and not seen.master_pid:
        lines.append(f"nothing is begun: postroom master {seen.base} --detach")
    elif waits and not alive:
        lines.append(f"nothing is begun: postroom agents start 1 {seen.base}")
    return lines


def card_rows(seen: Overview) -> list[list[str]]:
    """The table of cards, each with its agents and what they do."""
    jobs = {agent.agent: agent for agent in seen.agents}
    names = {row.short: row.name for row in seen.running}
    found = [["CARD", "NAME", "MEMORY", "USE", "TEMP", "DOING"]]
    for card in seen.cards:
        doing = [_doing(jobs[agent], names) for agent in card.agents]
        doing += [card.holder] if card.holder else []
        doing += [card.problem] if card.problem else []
        found.append(
            [
                str(card.index),
                card.name,
                memory(card),
                "-" if card.utilization is None else f"{card.utilization} %",
                "-" if card.temperature is None else f"{card.temperature} °C",
                "; ".join(doing) or "free, no agent",
            ]
        )
    for agent in seen.agents:
        if agent.gpu == "cpu" and agent.state != "dead":
            found.append(["-", agent.gpu_name, "-", "-", "-", _doing(agent, names)])
    return found


def memory(card: CardView) -> str:
    """How much of a card's memory is used."""
    used = "-" if card.memory_used_mib is None else from_mib(card.memory_used_mib)
    return f"{used} / {from_mib(card.memory_total_mib)}"


def _doing(agent: AgentView, names: dict[str, str]) -> str:
    job = f"{agent.job} {names.get(agent.job, '')}".strip() if agent.job else agent.state
    return f"agent {agent.agent}: {job}" + (" (drained)" if agent.drained else "")
