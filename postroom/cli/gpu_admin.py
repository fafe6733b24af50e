"""`postroom gpu manage`, `managed`, `quarantine`, `heal`, `purge`: for who runs the machine."""

from __future__ import annotations

import sys

import click

from ..gpus.cards import inventory
from ..gpus.ledger.protocol import Ledger
from . import codes
from .gpu_options import as_json, with_ledger
from .gpu_words import pick, print_json, talk


@click.command("managed")
@as_json
@with_ledger
def managed_(ledger: Ledger, *, json_: bool) -> None:
    """Print the ids of the cards that are handed out, one per line."""
    managed = ledger.managed()
    cards = [card for card in inventory.cards() if managed is None or card.uuid in managed]
    if json_:
        print_json([card.visible_id for card in cards])
    else:
        for card in cards:
            click.echo(card.visible_id)


@click.command("manage")
@click.argument("which", metavar="all|none|IDS", required=False)
@click.option("--count", type=click.IntRange(min=1), help="The first so many cards.")
@click.option("--force", is_flag=True, help="Also take out cards that are held; leases live on.")
@as_json
@with_ledger
def manage_(
    ledger: Ledger, *, which: str | None, count: int | None, force: bool, json_: bool
) -> None:
    """Say which cards are handed out from now on.

    Cards that are taken out stay with whoever holds them. Once root has said so, only root may.
    """
    if (which is None) == (count is None):
        raise click.UsageError("say all, none, a list of ids, or --count N")
    cards = inventory.cards()
    if count is not None:
        wanted: list[inventory.Card] | None = cards[:count]
    elif which == "all":
        wanted = None
    else:
        wanted = [] if which in ("none", None) else pick(cards, which)
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


@click.command("quarantine")
@click.argument("which", metavar="ID")
@click.option("--reason", default="by hand", show_default=True)
@as_json
@with_ledger
def quarantine_(ledger: Ledger, *, which: str, reason: str, json_: bool) -> None:
    """Give a card no more work; what runs on it goes on."""
    uuid = inventory.find(which).uuid
    ledger.quarantine(uuid, reason)
    if json_:
        print_json({"uuid": uuid, "reason": reason})


@click.command("heal")
@click.argument("which", metavar="ID")
@as_json
@with_ledger
def heal_(ledger: Ledger, *, which: str, json_: bool) -> None:
    """Let a quarantined card work again."""
    card = inventory.find(which)
    ledger.heal(card.uuid)
    if json_:
        print_json({"uuid": card.uuid, "problem": card.problem})
    if card.problem:
        talk(f"card {which} is out of quarantine, but the driver still says: {card.problem}")


@click.command("purge")
@as_json
@with_ledger
def purge_(ledger: Ledger, *, json_: bool) -> None:
    """Tidy up what is provably dead, and say what and why.

    Nothing depends on it: the dead hold nothing, purged or not.
    """
    done = ledger.purge()
    if json_:
        print_json([{"file": name, "reason": reason} for name, reason in done])
    else:
        for name, reason in done:
            click.echo(f"{name}: {reason}")
