"""`postroom gpu get`, `run` and `release`: leases for other people's programs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import click

from ..errors import CardHeld, GpuError
from ..gpus import inventory, keeper, processes, sizes
from ..gpus.inventory import Card
from ..gpus.ledger import Entry, Lease, Ledger, Request
from . import codes
from .gpu_options import as_json, pick, talk, with_ledger

NOT_EXECUTABLE = 126  # what shells answer when a command
NOT_FOUND = 127  # cannot be started
RELEASE_PATIENCE_S = 5.0


def asks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is wanted."""
    for option in (
        click.option("--name", default="", help="What it is for, shown to others."),
        click.option("--timeout", "timeout_s", type=float, help="Seconds to wait; else for ever."),
        click.option("--pack", is_flag=True, help="With --memory: the fullest card that fits."),
        click.option("--gpus", metavar="IDS", help="These cards, as 0,2 or by uuid; else any."),
        click.option("--memory", metavar="SIZE", help="Only so much of a card, as 8G."),
        click.option("-n", "count", type=click.IntRange(min=1), default=1, help="How many cards."),
    ):
        function = option(function)
    return function


def lease_for(
    ledger: Ledger,
    owner: processes.Process,
    *,
    count: int,
    memory: str | None,
    gpus: str | None,
    pack: bool,
    timeout_s: float | None,
    name: str,
) -> tuple[Lease, list[Card]]:
    """Wait for the cards that were asked for, talking about it; exits with 75 when in vain."""
    cards = inventory.cards()
    request = Request(
        count=count,
        cards=tuple(card.uuid for card in pick(cards, gpus)) if gpus else (),
        memory_mib=sizes.to_mib(memory) if memory else None,
        name=name,
        pack=pack,
        owner=owner,
    )
    if gpus and count > 1:
        raise click.UsageError("--gpus names the cards; leave -n away")
    try:
        lease = ledger.acquire(
            request,
            timeout_s,
            waiting=lambda reason: talk(f"waiting: {reason}"),
            wanted=lambda: processes.alive(owner) is not False,
            cards=cards,
        )
    except CardHeld as error:
        talk(f"no card: {error}")
        sys.exit(codes.NO_GPU)
    granted = [card for card in cards if card.uuid in lease.cards]
    for card in granted:
        if card.used_mib and card.processes and not memory:
            who = ", ".join(sorted({process.user for process in card.processes}))
            talk(f"card {card.index} is also used by {who} without a lease")
    return lease, granted


@click.command("get")
@asks
@as_json
@with_ledger
def get_(ledger: Ledger, *, json_: bool, **wishes: Any) -> None:
    """Wait for a card and print its id.

    The card is the calling shell's, in `read ID < <(postroom gpu get)` as in
    `ID=$(postroom gpu get)`: until `release`, or until the shell and all that it started since are
    gone. Several ids are separated by commas, as CUDA_VISIBLE_DEVICES takes them.
    """
    owner = keeper.caller()
    lease, granted = lease_for(ledger, owner, **wishes)
    answer = ",".join(card.visible_id for card in granted)
    if json_:
        answer = json.dumps(
            {
                "lease_id": lease.lease_id,
                "ids": [card.visible_id for card in granted],
                "uuids": [card.uuid for card in granted],
                "memory_mib": lease.memory_mib,
                "owner_pid": owner.pid,
                "environment": inventory.pin(*granted),
            }
        )
    keeper.keep(lease, owner)
    click.echo(answer)


@click.command("run", context_settings={"ignore_unknown_options": True})
@asks
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_ledger
def run_(ledger: Ledger, *, command: tuple[str, ...], **wishes: Any) -> NoReturn:
    """Run COMMAND on a card of its own, with CUDA_VISIBLE_DEVICES set.

    The command takes the place of this process and has the lock itself, as have its children: the
    card is free when the last of them is gone, and the exit code is the command's own.
    """
    if not wishes["name"]:
        wishes["name"] = os.path.basename(command[0])
    lease, granted = lease_for(ledger, processes.myself(), **wishes)
    environment = os.environ | inventory.pin(*granted)
    for fd in lease.fds:
        os.set_inheritable(fd, True)
    # Python ignores this signal, and a program that is started inherits that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - what the user typed
    except OSError as error:
        lease.release()
        talk(f"{command[0]}: {error.strerror}")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


@click.command("release")
@click.argument("which", metavar="ID")
@click.option("--force", is_flag=True, help="Also a lease of another shell of yours.")
@as_json
@with_ledger
def release_(ledger: Ledger, *, which: str, force: bool, json_: bool) -> None:
    """Give a card of `get` back; ID is a card's id, or a lease's.

    Only what the calling shell holds is released, so that a late or repeated release never takes a
    card from somebody who got it since. --force releases what another shell of yours holds.
    """
    uuids = _uuids(which)
    found = [
        entry
        for entry in ledger.holders()
        if which == entry.lease_id or (uuids and set(uuids) & set(entry.cards))
    ]
    above = set(processes.ancestors())
    released = []
    for entry in found:
        refusal = "" if which == entry.lease_id else _refusal(entry, above, force)
        if not refusal and entry.uid != os.geteuid() and os.geteuid() != 0:
            refusal = "it is another user's"
        if not refusal and entry.keeper is None:
            refusal = "it ends with its own process"
        if refusal:
            talk(f"not released: {which} is held by {entry.describe()}: {refusal}")
        elif entry.keeper is not None and keeper.dismiss(entry.keeper):
            _await_end(ledger, entry)
            released.append(entry.lease_id)
    if not found:
        talk(f"{which} is not held: nothing to release")
    if json_:
        click.echo(json.dumps({"released": released}))


def _uuids(which: str) -> list[str]:
    try:
        return [card.uuid for card in pick(inventory.cards(), which)]
    except GpuError:
        return []


def _refusal(entry: Entry, above: set[int], force: bool) -> str:
    ours = entry.process.pid in above and processes.alive(entry.process)
    return "" if ours or force else "another shell's (--force releases it, if it is yours)"


def _await_end(ledger: Ledger, entry: Entry) -> None:
    """Return once others see it free: the next line of the script may ask for it again."""
    deadline = time.monotonic() + RELEASE_PATIENCE_S
    while any(held.lease_id == entry.lease_id for held in ledger.holders()):
        if time.monotonic() > deadline:
            raise GpuError(f"the keeper of {entry.describe()} does not let go")
        time.sleep(0.005)
