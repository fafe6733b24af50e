"""`postroom gpu list`, `info`, `queue`, `log` and `watch`: the listings."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from ..gpus.cards import inventory
from ..gpus.ledger.card_overview import CardStatus, encode_entry, idle_since, overview
from ..gpus.ledger.irregular import irregularities
from ..gpus.ledger.lease_records import printable
from ..gpus.ledger.protocol import LeaseEntry, Ledger
from ..text import sizes
from ..text.durations import format_time
from ..text.table import aligned
from .gpu_output import Misuse, print_json, say, talk

LEAST_INTERVAL_S = 0.1
NOTHING: Mapping[str, float] = {}


def show(value: Any, unit: str = "") -> str:
    """Return a value, or a dash if it is unknown."""
    return "-" if value is None else f"{value}{unit}"


def rows(views: list[CardStatus], idle: Mapping[str, float] = NOTHING) -> list[list[str]]:
    """Return the table of cards: a line per card, and one more per further holder.

    `idle` says since when cards that are held have not computed.
    """
    found = [["ID", "STATE", "NAME", "USED", "TOTAL", "UTIL", "USER", "PID", "SINCE", "WHAT"]]
    for view in views:
        card = view.card
        used = "-" if card.used_mib is None else sizes.from_mib(card.used_mib)
        head = [card.visible_id, view.state.value, printable(card.name)]
        head += [used, sizes.from_mib(card.memory_mib), show(card.utilisation, "%")]
        lines = [_holder(lease) for lease in view.leases]
        lines += [
            [process.user, str(process.pid), "-", f"no lease: {printable(process.command)}"]
            for process in view.foreign
        ]
        if card.uuid in idle:
            lines.append(["", "", "", f"held, and idle since {format_time(idle[card.uuid])}"])
        if view.reason:
            lines.append(["", "", "", printable(view.reason)])
        for number, line in enumerate(lines or [["-", "-", "-", ""]]):
            found.append((head if number == 0 else [""] * len(head)) + line)
    return found


def _holder(lease: LeaseEntry) -> list[str]:
    what = printable(lease.name)
    if lease.memory_mib is not None:
        what = f"{sizes.from_mib(lease.memory_mib)} {what}"
    if lease.squatter:
        what += f" (its lock is kept by {printable(lease.squatter)})"
    return [
        printable(lease.user),
        str(lease.process.pid),
        format_time(lease.granted_at),
        what.strip(),
    ]


def _encoded(views: list[CardStatus], idle: Mapping[str, float]) -> list[dict[str, Any]]:
    return [view.encode() | {"idle_since": idle.get(view.card.uuid)} for view in views]


def list_cards(ledger: Ledger, *, json_: bool) -> None:
    """List the GPUs: who holds them, since when, and what runs without a lease."""
    views = overview(ledger, inventory.cards())
    idle = idle_since(ledger, views, time.time())
    if json_:
        print_json(_encoded(views, idle))
    else:
        say(aligned(rows(views, idle)))
        held, waiting, rules = ledger.holders(squatters=False), ledger.queue(), ledger.rules()
        if rules.problem:
            talk(f"the rules limit nobody: {rules.problem}")
        for line in irregularities(held, waiting, rules.caps({entry.uid for entry in held})):
            talk(printable(line))


def info(ledger: Ledger, *, json_: bool) -> None:
    """Show everything about the GPUs and the ledger."""
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
        say(f"{key}: {show(facts[key])}")
    for view in views:
        card = view.card
        state = f"{view.state.value} {printable(view.reason)}".rstrip()
        say(f"\ncard {card.index}: {printable(card.name)}, {state}")
        say(f"  uuid {card.uuid}, {card.kind}")
        say(
            f"  memory {card.memory_mib} MiB and {card.driver_mib} for the driver, used "
            f"{show(card.used_mib)}, "
            f"leased {view.reserved_mib}; {show(card.utilisation, ' %')}, "
            f"{show(card.temperature, ' °C')}, {show(card.power, ' W')}"
        )
        for lease in view.leases:
            say(f"  lease {lease.lease_id}: {printable(lease.describe())}")
        for process in card.processes:
            say(f"  process {process.pid} ({process.user}): {show(process.used_mib, ' MiB')}")


def queue(ledger: Ledger, *, json_: bool) -> None:
    """List the waiting requests in their order."""
    waiting = ledger.queue()
    if json_:
        print_json([encode_entry(entry) for entry in waiting])
        return
    found = [["PLACE", "USER", "PID", "SINCE", "WANTS", "WHAT"]]
    for place, entry in enumerate(waiting, 1):
        wants = f"{entry.count} card{'s' if entry.count > 1 else ''}"
        if entry.memory_mib is not None:
            wants += f" with {sizes.from_mib(entry.memory_mib)}"
        found.append(
            [
                str(place),
                printable(entry.user),
                str(entry.process.pid),
                format_time(entry.asked_at),
                wants,
                printable(entry.name),
            ]
        )
    say(aligned(found))


def log(ledger: Ledger, *, count: int, json_: bool) -> None:
    """Show what happened in the ledger, oldest first."""
    lines = ledger.log()[-count:]
    if json_:
        print_json(lines)
        return
    for line in lines:
        cards = ",".join(map(str, line.get("cards") or ())) or "-"
        what = printable(str(line.get("name") or line.get("reason") or ""))
        say(
            f"{format_time(line['at'])}  {printable(str(line['what'])):<12} {cards}  "
            f"{printable(str(line['user']))} {line.get('pid', '')}  {what}".rstrip()
        )


def watch(ledger: Ledger, *, interval_s: float, count: int | None, json_: bool) -> None:
    """List the GPUs again and again, until Ctrl-C."""
    if not interval_s >= LEAST_INTERVAL_S:
        raise Misuse(f"--interval is at least {LEAST_INTERVAL_S} s")
    shown = 0
    with inventory.CardWatch() as watch:
        while True:
            views = overview(ledger, watch.cards())
            idle = idle_since(ledger, views, time.time())
            if json_:
                say(json.dumps(_encoded(views, idle)))
            else:
                if sys.stdout.isatty():
                    say("\033[2J\033[H")
                say(f"{format_time(time.time())}  {ledger.where}\n{aligned(rows(views, idle))}")
            shown += 1
            if shown == count:
                return
            time.sleep(interval_s)
