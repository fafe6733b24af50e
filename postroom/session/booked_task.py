"""A task in a session that shares its card: room is booked for it, as for any job there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..gpus.cards import inventory
from ..gpus.ledger.protocol import open_ledger
from ..gpus.memory.booking import Need, book
from ..gpus.memory.profiles import Kind, Profiles

R = TypeVar("R")


def call_booked(task: str, function: Callable[[], R]) -> R:
    """Call a kernel that knows nothing of cards, once there is room for it on the session's."""
    need = Need(Kind(task), name=task)
    cards = inventory.cards()
    with book(need, ledger=open_ledger(), profiles=Profiles(), cards=cards) as booking:
        return booking.call(function)
