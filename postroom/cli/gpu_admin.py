"""`postroom gpu manage`, `managed`, `quarantine`, `heal`, `purge`: for who runs the machine."""

from __future__ import annotations

import sys

from ..gpus.cards import inventory
from ..gpus.ledger.protocol import Ledger
from . import codes
from .gpu_output import Misuse, print_json, say, talk


def managed(ledger: Ledger, *, json_: bool) -> None:
    """Print the ids of the cards that are handed out, one per line."""
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
    """Say which cards are handed out from now on.

    Cards that are taken out stay with whoever holds them. Once root has said so, only root may.
    """
    if (which is None) == (count is None):
        raise Misuse("say all, none, a list of ids, or --count N")
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
            talk(f"still held by {entry.describe()}; --force takes the card out all the same")
        if leaving:
            sys.exit(codes.USAGE)
    ledger.manage(uuids)
    if ledger.managed() != (None if uuids is None else tuple(uuids)):
        talk("root has said which cards are handed out: only root may change it")
        sys.exit(codes.USAGE)
    if json_:
        print_json(uuids)


def quarantine(ledger: Ledger, *, which: str, reason: str, json_: bool) -> None:
    """Give a card no more work; what runs on it goes on."""
    uuid = inventory.find(which).uuid
    ledger.quarantine(uuid, reason)
    if json_:
        print_json({"uuid": uuid, "reason": reason})


def heal(ledger: Ledger, *, which: str, json_: bool) -> None:
    """Let a quarantined card work again."""
    card = inventory.find(which)
    ledger.heal(card.uuid)
    if json_:
        print_json({"uuid": card.uuid, "problem": card.problem})
    if card.problem:
        talk(f"card {which} is out of quarantine, but the driver still says: {card.problem}")


def purge(ledger: Ledger, *, json_: bool) -> None:
    """Tidy up what is provably dead, and say what and why.

    Nothing depends on it: the dead hold nothing, purged or not.
    """
    done = ledger.purge()
    if json_:
        print_json([{"file": name, "reason": reason} for name, reason in done])
    else:
        for name, reason in done:
            say(f"{name}: {reason}")
