"""`postroom gpu manage`, `managed`, `quarantine`, `heal`, `purge`: for administrators."""

from __future__ import annotations

import sys

from ..gpus.cards import inventory
from ..gpus.ledger.protocol import Ledger
from . import codes
from .gpu_output import Misuse, print_json, say, talk


def managed(ledger: Ledger, *, json_: bool) -> None:
    """Print the ids of the GPUs that are handed out, one per line."""
    managed = ledger.managed()
    cards = [card for card in inventory.cards() if managed is None or card.uuid in managed]
    if json_:
        print_json([card.visible_id for card in cards])
    else:
        for card in cards:
            say(card.visible_id)


def manage(
    ledger: Ledger, *, which: str | None, count: int | None, force: bool, json_: bool
) -> None:
    """Choose which GPUs are handed out from now on.

    Leases on other GPUs stay until they end. Once root has chosen, only root can
    change it.
    """
    if (which is None) == (count is None):
        raise Misuse("name the GPUs: all, none, a list of ids, or --count N")
    cards = inventory.cards()
    if count is not None:
        wanted: list[inventory.Card] | None = cards[:count]
    elif which == "all":
        wanted = None
    else:
        wanted = [] if which in ("none", None) else inventory.pick(cards, which)
    uuids = None if wanted is None else [card.uuid for card in wanted]
    if uuids is not None and not force:
        leaving = [entry for entry in ledger.holders() if set(entry.cards) - set(uuids)]
        for entry in leaving:
            talk(f"still held by {entry.describe()}; --force excludes the GPU anyway")
        if leaving:
            sys.exit(codes.USAGE)
    ledger.manage(uuids)
    if ledger.managed() != (None if uuids is None else tuple(uuids)):
        talk("root has chosen which GPUs are handed out: only root can change it")
        sys.exit(codes.USAGE)
    if json_:
        print_json(uuids)


def quarantine(ledger: Ledger, *, which: str, reason: str, json_: bool) -> None:
    """Give a GPU no more work; running programs continue."""
    uuid = inventory.find(which).uuid
    ledger.quarantine(uuid, reason)
    if json_:
        print_json({"uuid": uuid, "reason": reason})


def heal(ledger: Ledger, *, which: str, json_: bool) -> None:
    """End the quarantine of a GPU."""
    card = inventory.find(which)
    ledger.heal(card.uuid)
    if json_:
        print_json({"uuid": card.uuid, "problem": card.problem})
    if card.problem:
        talk(f"card {which} is no longer quarantined, but the driver reports: {card.problem}")


def purge(ledger: Ledger, *, json_: bool) -> None:
    """Remove the files of dead leases, and print which and why.

    This is never necessary: a dead lease holds nothing, purged or not.
    """
    done = ledger.purge()
    if json_:
        print_json([{"file": name, "reason": reason} for name, reason in done])
    else:
        for name, reason in done:
            say(f"{name}: {reason}")
