"""`postroom status`: show the queue on one page."""

from __future__ import annotations

import click

from ..queue.queue_view import QueueView
from ..queue.rows import PENDING, AgentView, CardView, Overview
from ..store.base import up_command
from ..store.snapshot import DEAD
from ..text.safe_text import printable
from ..text.sizes import from_mib
from .job_options import in_base
from .options import CONTEXT, as_json
from .output import print_jobs, print_json, print_table

SHOWN = 8


@click.command(context_settings=CONTEXT)
@as_json
@in_base
def command(view: QueueView, json_: bool) -> None:
    """Show the queue on one page: GPUs, running jobs, next jobs, failed jobs, today's counts.

    \b
      postroom status
      postroom status --json | jq .counts
    """
    seen = view.overview()
    if json_:
        print_json(seen)
        return
    for line in head(seen):
        click.echo(printable(line))
    if seen.cards:
        click.echo("\nGPUs")
        print_table(card_rows(seen), indent="  ")
    for title, rows, more in (
        ("running", seen.running, len(seen.running)),
        ("next", seen.queued[:SHOWN], seen.counts.get("queued", 0)),
        ("failed", seen.failed[:SHOWN], len(seen.failed)),
    ):
        if rows:
            click.echo(f"\n{title}" + (f" ({len(rows)} of {more})" if more > len(rows) else ""))
            print_jobs(rows, indent="  ")
    if seen.failed:
        click.echo(
            "\nsee why: postroom show JOB; again: postroom rerun JOB; all commands: rerun --failed"
        )


def head(seen: Overview) -> list[str]:
    """Return the counts, and what is in the way, in a few lines."""
    alive = [agent for agent in seen.agents if agent.state not in DEAD]
    drained = sum(agent.drained for agent in alive)
    agents = f"{len(alive)} agent{'' if len(alive) == 1 else 's'}"
    scheduler = (
        f"scheduler running (pid {seen.master_pid})" if seen.master_pid else "NO SCHEDULER RUNNING"
    )
    words = [scheduler, agents + (f" ({drained} drained)" if drained else "")]
    words += ["PAUSED"] if seen.paused else []
    if seen.pending_requests:
        words.append(f"{seen.pending_requests} requests wait for a scheduler")
    words.append(seen.base)  # last: it may be long
    counts = [f"{seen.counts.get('running', 0) + seen.counts.get('stopping', 0)} running"]
    counts += [f"{seen.counts[state]} {state}" for state in PENDING if seen.counts.get(state)]
    lines = [
        ", ".join(words),
        ", ".join(counts),
        f"today: {seen.done_today} ended, {seen.failed_today} of them failed; "
        f"{seen.rate_per_hour:.0f} in the last hour",
    ]
    lines += [seen.disk] if seen.disk else []
    lines += [f"ATTENTION: {trouble}" for trouble in seen.troubles]
    if seen.paused_why:
        lines.append(
            f"the queue paused itself: {seen.paused_why}; repair that, then: postroom resume"
        )
    lines += [
        f"project {one.name} paused itself: {one.paused_why}; repair that, then: "
        f"postroom resume --project {one.name}"
        for one in seen.projects
        if one.paused_why
    ]
    waiting = any(seen.counts.get(state) for state in PENDING if state != "abandoned")
    if waiting and not seen.master_pid:
        lines.append(f"nothing starts without a scheduler: {up_command(seen.base)}")
    elif waiting and not alive:
        lines.append(f"nothing starts without an agent: {up_command(seen.base)}")
    if seen.counts.get("abandoned"):
        lines.append("the programs of abandoned jobs are gone: postroom jobs --state abandoned")
    return lines


def card_rows(seen: Overview) -> list[list[str]]:
    """Return the table of GPUs, with the agents on each and their jobs."""
    jobs = {agent.agent: agent for agent in seen.agents}
    names = {row.short: row.name for row in seen.running}
    found = [["GPU", "NAME", "MEMORY", "USE", "TEMP", "DOING"]]
    for card in seen.cards:
        doing = [_doing(jobs[agent], names) for agent in card.agents]
        if card.holder and not any(card.holder in one for one in doing):
            doing.append(card.holder)
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
        if agent.state == "missing" or (agent.gpu == "cpu" and agent.state != "dead"):
            found.append(["-", agent.gpu_name, "-", "-", "-", _doing(agent, names)])
    return found


def memory(card: CardView) -> str:
    """Return the used and the total memory of a GPU."""
    used = "-" if card.memory_used_mib is None else from_mib(card.memory_used_mib)
    return f"{used} / {from_mib(card.memory_total_mib)}"


def _doing(agent: AgentView, names: dict[str, str]) -> str:
    job = f"{agent.job} {names.get(agent.job, '')}".strip() if agent.job else agent.state
    note = f" ({agent.note})" if agent.note and not agent.job else ""
    return f"agent {agent.agent}: {job}{note}" + (" (drained)" if agent.drained else "")
