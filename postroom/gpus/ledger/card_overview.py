"""The cards with their leases and states, for `postroom gpu list` and every other listing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from ...system import processes
from ..cards.inventory import Card, Usage
from . import activity
from .protocol import LeaseEntry, Ledger

IDLE_S = 3600.0  # a holder whose card has not computed for so long is named


class CardState(StrEnum):
    """The state of a card, from the ledger and the driver."""

    IDLE = "idle"
    HELD = "held"  # as a whole
    SHARED = "shared"  # some of its memory is held
    FOREIGN = "foreign"  # not held, but used without a lease
    UNMANAGED = "unmanaged"
    QUARANTINED = "quarantined"
    SICK = "sick"


class CardStatus(NamedTuple):
    """One card with its leases and its state."""

    card: Card
    state: CardState
    leases: tuple[LeaseEntry, ...]
    foreign: tuple[Usage, ...]  # processes that use it without a lease
    reason: str = ""  # why it gets no work
    managed: bool = True

    @property
    def reserved_mib(self) -> int:
        """Return how much of it is reserved."""
        if any(lease.memory_mib is None for lease in self.leases):
            return self.card.memory_mib
        return sum(lease.memory_mib or 0 for lease in self.leases)

    def encode(self) -> dict[str, Any]:
        """Return it as values for JSON."""
        card = self.card
        return {
            "index": card.index,
            "id": card.visible_id,
            "uuid": card.uuid,
            "name": card.name,
            "kind": card.kind,
            "state": self.state.value,
            "reason": self.reason,
            "managed": self.managed,
            "memory_mib": card.memory_mib,
            "driver_mib": card.driver_mib,
            "used_mib": card.used_mib,
            "reserved_mib": self.reserved_mib,
            "utilisation": card.utilisation,
            "temperature": card.temperature,
            "power": card.power,
            "leases": [encode_entry(lease) for lease in self.leases],
            "foreign": [process._asdict() for process in self.foreign],
            "processes": [process._asdict() for process in card.processes],
        }


def encode_entry(entry: LeaseEntry) -> dict[str, Any]:
    """Return a lease or a waiting request as values for JSON."""
    return {
        "lease_id": entry.lease_id,
        "user": entry.user,
        "host": entry.host,
        "pid": entry.process.pid,
        "name": entry.name,
        "group": entry.group,
        "cards": list(entry.cards),
        "count": entry.count,
        "among": list(entry.among),
        "memory_mib": entry.memory_mib,
        "asked_at": entry.asked_at,
        "granted_at": entry.granted_at,
        "squatter": entry.squatter,
        "token": entry.token,
    }


def overview(ledger: Ledger, cards: Sequence[Card], *, squatters: bool = True) -> list[CardStatus]:
    """Return the state of each card, with its leases."""
    held = ledger.holders(squatters=squatters)
    managed, sick = ledger.managed(), ledger.quarantined()
    views = []
    for card in cards:
        leases = tuple(entry for entry in held if card.uuid in entry.cards or not entry.cards)
        foreign = strangers(card, leases)
        state, reason = _state_of(leases, foreign)
        if managed is not None and card.uuid not in managed:
            state = state if leases else CardState.UNMANAGED
            reason = "not managed"
        if card.uuid in sick:
            state, reason = (
                CardState.QUARANTINED,
                f"{sick[card.uuid].reason} ({sick[card.uuid].user})",
            )
        elif card.problem:
            state, reason = CardState.SICK, card.problem
        in_hand = managed is None or card.uuid in managed
        views.append(CardStatus(card, state, leases, foreign, reason, in_hand))
    return views


def idle_since(ledger: Ledger, views: Sequence[CardStatus], now: float) -> dict[str, float]:
    """Return the cards that are held and have not computed for an hour or more, and since when.

    Only cards that somebody looks at (`activity`) can be known to be idle.
    """
    held = [view for view in views if view.leases]
    if not held or now - min(_held_since(view, now) for view in held) < IDLE_S:
        return {}
    seen = ledger.activity()
    found = {
        view.card.uuid: since
        for view in held
        if (since := activity.idle_since(view.card.uuid, _held_since(view, now), seen, now))
    }
    return {uuid: since for uuid, since in found.items() if now - since >= IDLE_S}


def _held_since(view: CardStatus, now: float) -> float:
    return min(lease.granted_at or now for lease in view.leases)


def _state_of(leases: tuple[LeaseEntry, ...], foreign: tuple[Usage, ...]) -> tuple[CardState, str]:
    if any(lease.memory_mib is None for lease in leases):
        return CardState.HELD, ""
    if leases:
        return CardState.SHARED, ""
    if foreign:
        return CardState.FOREIGN, ""
    return CardState.IDLE, ""


def strangers(card: Card, leases: Sequence[LeaseEntry]) -> tuple[Usage, ...]:
    """Return the processes that compute on a card, and belong to none of its leases."""
    return tuple(
        process for process in card.processes if process.compute and not _belongs(process, leases)
    )


def _belongs(process: Usage, leases: Sequence[LeaseEntry]) -> bool:
    """Whether a process is the owner of one of the leases, or a descendant of one.

    Of a lease in another container only the user can be compared: its pids are not ours.
    """
    if not leases:
        return False
    here = processes.pid_namespace()
    lineage = {process.pid, *processes.ancestors(process.pid)}
    return any(
        lease.process.pid in lineage
        if lease.process.pid_namespace == here
        else lease.user == process.user
        for lease in leases
    )
