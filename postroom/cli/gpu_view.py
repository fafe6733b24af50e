"""`postroom gpu list`, `info`, `queue`, `log` and `watch`: what is to be seen."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click

from ..gpus.cards import inventory
from ..gpus.ledger.card_overview import CardStatus, encode_entry, overview
from ..gpus.ledger.lease_records import printable
from ..gpus.ledger.protocol import LeaseEntry, Ledger
from ..text import memory_sizes
from .gpu_options import as_json, with_ledger
from .gpu_words import print_json, table


def clock(at: float | None) -> str:
    """Return a time as people read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "-"


def show(value: Any, unit: str = "") -> str:
    """Return a value, or a dash for what is not known."""
    return "-" if value is None else f"{value}{unit}"


def rows(views: list[CardStatus]) -> list[list[str]]:
    """Return the table of cards: a line per card, and one more per further holder."""
    found = [["ID", "STATE", "NAME", "USED", "TOTAL", "UTIL", "USER", "PID", "SINCE", "WHAT"]]
    for view in views:
        card = view.card
        used = "-" if card.used_mib is None else memory_sizes.from_mib(card.used_mib)
        head = [card.visible_id, view.state.value, printable(card.name)]
        head += [used, memory_sizes.from_mib(card.memory_mib), show(card.utilisation, "%")]
        lines = [_holder(lease) for lease in view.leases]
        lines += [
            [process.user, str(process.pid), "-", f"no lease: {printable(process.command)}"]
            for process in view.foreign
        ]
        if view.reason:
            lines.append(["", "", "", printable(view.reason)])
        for number, line in enumerate(lines or [["-", "-", "-", ""]]):
            found.append((head if number == 0 else [""] * len(head)) + line)
    return found


def _holder(lease: LeaseEntry) -> list[str]:
    what = printable(lease.name)
    if lease.memory_mib is not None:
        what = f"{memory_sizes.from_mib(lease.memory_mib)} {what}"
    if lease.squatter:
        what += f" (its lock is kept by {printable(lease.squatter)})"
    return [printable(lease.user), str(lease.process.pid), clock(lease.granted_at), what.strip()]


@click.command("list")
@as_json
@with_ledger
def list_(ledger: Ledger, *, json_: bool) -> None:
    """Show the cards: who holds them, since when, and what is used without a lease."""
    views = overview(ledger, inventory.cards())
    if json_:
        print_json([view.encode() for view in views])
    else:
        click.echo(table(rows(views)))


@click.command("info")
@as_json
@with_ledger
def info_(ledger: Ledger, *, json_: bool) -> None:
    """Show everything about the cards and the ledger."""
    views = overview(ledger, inventory.cards())
    facts = {
        "host": os.uname().nodename,
        "ledger": ledger.where,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "waiting": len(ledger.queue()),
        "cards": [view.encode() for view in views],
    }
    if json_:
        print_json(facts)
        return
    for key in ("host", "ledger", "visible", "waiting"):
        click.echo(f"{key}: {show(facts[key])}")
    for view in views:
        card = view.card
        state = f"{view.state.value} {printable(view.reason)}".rstrip()
        click.echo(f"\ncard {card.index}: {printable(card.name)}, {state}")
        click.echo(f"  uuid {card.uuid}, {card.kind}")
        click.echo(
            f"  memory {card.memory_mib} MiB, used {show(card.used_mib)}, "
            f"leased {view.reserved_mib}; {show(card.utilisation, ' %')}, "
            f"{show(card.temperature, ' °C')}, {show(card.power, ' W')}"
        )
        for lease in view.leases:
            click.echo(f"  lease {lease.lease_id}: {printable(lease.describe())}")
        for process in card.processes:
            click.echo(f"  process {process.pid} ({process.user}): {process.used_mib} MiB")


@click.command("queue")
@as_json
@with_ledger
def queue_(ledger: Ledger, *, json_: bool) -> None:
    """Show who waits, in their order."""
    line = ledger.queue()
    if json_:
        print_json([encode_entry(entry) for entry in line])
        return
    found = [["PLACE", "USER", "PID", "SINCE", "WANTS", "WHAT"]]
    for place, entry in enumerate(line, 1):
        wants = f"{entry.count} card{'s' if entry.count > 1 else ''}"
        if entry.memory_mib is not None:
            wants += f" with {memory_sizes.from_mib(entry.memory_mib)}"
        found.append(
            [
                str(place),
                printable(entry.user),
                str(entry.process.pid),
                clock(entry.asked_at),
                wants,
                printable(entry.name),
            ]
        )
    click.echo(table(found))


@click.command("log")
@click.option("-n", "count", type=int, default=50, show_default=True, help="The last so many.")
@as_json
@with_ledger
def log_(ledger: Ledger, *, count: int, json_: bool) -> None:
    """Show what happened, oldest first."""
    lines = ledger.log()[-count:]
    if json_:
        print_json(lines)
        return
    for line in lines:
        cards = ",".join(map(str, line.get("cards") or ())) or "-"
        what = printable(str(line.get("name") or line.get("reason") or ""))
        click.echo(
            f"{clock(line['at'])}  {printable(str(line['what'])):<12} {cards}  "
            f"{printable(str(line['user']))} {line.get('pid', '')}  {what}".rstrip()
        )


@click.command("watch")
@click.option("--interval", "interval_s", type=click.FloatRange(min=0.1), default=2.0)
@click.option("--count", type=int, help="Stop after so many.")
@as_json
@with_ledger
def watch_(ledger: Ledger, *, interval_s: float, count: int | None, json_: bool) -> None:
    """Show the cards again and again, until Ctrl-C."""
    shown = 0
    with inventory.CardWatch() as watch:
        while True:
            views = overview(ledger, watch.cards())
            if json_:
                click.echo(json.dumps([view.encode() for view in views]))
            else:
                if sys.stdout.isatty():
                    click.clear()
                click.echo(f"{clock(time.time())}  {ledger.where}\n{table(rows(views))}")
            shown += 1
            if shown == count:
                return
            time.sleep(interval_s)
