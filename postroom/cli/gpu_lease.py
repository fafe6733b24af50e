"""`postroom gpu get`, `run`, `release` and `idle`: what other people's scripts call.

They are called in loops, so this imports nothing that is slow, nor anything that it may not need.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NoReturn

from ..errors import CardHeld, GpuError
from ..gpus.cards import inventory
from ..gpus.cards.inventory import Card, CardWatch
from ..gpus.ledger import lease_keeper
from ..gpus.ledger.protocol import Lease, LeaseEntry, LeaseRequest, Ledger
from ..system import processes
from ..text import memory_sizes
from . import codes
from .gpu_output import Misuse, print_json, say, talk

NOT_EXECUTABLE = 126  # what shells answer when a command
NOT_FOUND = 127  # cannot be started
RELEASE_PATIENCE_S = 5.0


def lease_for(
    ledger: Ledger,
    watch: CardWatch,
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
    if gpus and count > 1:
        raise Misuse("--gpus names the cards; leave -n away")
    cards = watch.cards()
    watch.close()  # it may be long until it is our turn, and what follows is to have no child
    request = LeaseRequest(
        count=count,
        cards=tuple(card.uuid for card in inventory.pick(cards, gpus)) if gpus else (),
        memory_mib=memory_sizes.to_mib(memory) if memory else None,
        name=name,
        pack=pack,
        owner=owner,
    )
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


def get(ledger: Ledger, watch: CardWatch, *, json_: bool, **scheduling: Any) -> None:
    """Wait for a card and print its id.

    The card is the calling shell's, in `read ID < <(postroom gpu get)` as in
    `ID=$(postroom gpu get)`: until `release`, or until the shell and all that it started since are
    gone. Several ids are separated by commas, as CUDA_VISIBLE_DEVICES takes them.
    """
    owner = lease_keeper.caller()
    lease, granted = lease_for(ledger, watch, owner, **scheduling)
    answer = ",".join(card.visible_id for card in granted)
    if json_:
        import json

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
    lease_keeper.keep(lease, owner)
    say(answer)


def run(ledger: Ledger, watch: CardWatch, *, command: list[str], **scheduling: Any) -> NoReturn:
    """Run COMMAND on a card of its own, with CUDA_VISIBLE_DEVICES set.

    The command takes the place of this process and has the lock itself, as have its children: the
    card is free when the last of them is gone, and the exit code is the command's own.
    """
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise Misuse("Missing argument 'COMMAND...'.")
    if not scheduling["name"]:
        scheduling["name"] = os.path.basename(command[0])
    lease, granted = lease_for(ledger, watch, processes.myself(), **scheduling)
    environment = os.environ | inventory.pin(*granted)
    for fd in lease.fds:
        os.set_inheritable(fd, True)
    import signal

    # Python ignores this signal, and a program that is started inherits that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - what the user typed
    except OSError as error:
        lease.release()
        talk(f"{command[0]}: {error.strerror}")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def release(ledger: Ledger, watch: CardWatch, *, which: str, force: bool, json_: bool) -> None:
    """Give a card of `get` back; ID is a card's id, or a lease's.

    Only what the calling shell holds is released, so that a late or repeated release never takes a
    card from somebody who got it since. --force releases what another shell of yours holds.
    """
    uuids, trouble = _uuids(watch, which)
    found = [
        entry
        for entry in ledger.holders(squatters=False)
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
            talk(f"not released: {which} is held by {_named(ledger, entry)}: {refusal}")
        elif entry.keeper is not None and lease_keeper.dismiss(entry.keeper):
            _await_end(ledger, entry)
            released.append(entry.lease_id)
    if not found and trouble is not None:
        raise trouble
    if not found:
        talk(f"{which} is not held: nothing to release")
    if json_:
        print_json({"released": released})


def _uuids(watch: CardWatch, which: str) -> tuple[list[str], GpuError | None]:
    """Return the cards that are meant, and what the driver has to say against being asked."""
    try:
        cards = watch.cards()
    except GpuError as error:
        return [], error  # a lease's own id will do without cards
    try:
        return [card.uuid for card in inventory.pick(cards, which)], None
    except GpuError:
        return [], None


def _named(ledger: Ledger, entry: LeaseEntry) -> str:
    """Say whose a lease is, with whoever may be keeping its lock."""
    held = {entry.lease_id: entry} | {held.lease_id: held for held in ledger.holders()}
    return held[entry.lease_id].describe()


def _refusal(entry: LeaseEntry, above: set[int], force: bool) -> str:
    ours = entry.process.pid in above and processes.alive(entry.process)
    return "" if ours or force else "another shell's (--force releases it, if it is yours)"


def _await_end(ledger: Ledger, entry: LeaseEntry) -> None:
    """Return once others see it free: the next line of the script may ask for it again."""
    deadline = time.monotonic() + RELEASE_PATIENCE_S
    while any(held.lease_id == entry.lease_id for held in ledger.holders(squatters=False)):
        if time.monotonic() > deadline:
            raise GpuError(f"the lease of {_named(ledger, entry)} does not end")
        time.sleep(0.005)


def idle(ledger: Ledger, watch: CardWatch, *, json_: bool) -> None:
    """Print the ids of the cards that are free, one per line."""
    from ..gpus.ledger.card_overview import CardState, overview

    views = overview(ledger, watch.cards(), squatters=False)
    ids = [view.card.visible_id for view in views if view.state is CardState.IDLE]
    if json_:
        print_json(ids)
    elif ids:
        say("\n".join(ids))
