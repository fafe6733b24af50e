"""A task in a session that shares GPUs: it books GPU memory, as every job there does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..gpus.cards import inventory
from ..gpus.ledger.protocol import open_ledger
from ..gpus.memory.booking import Need, book
from ..gpus.memory.profiles import Kind, Profiles

R = TypeVar("R")


def call_booked(task: str, function: Callable[[], R]) -> R:
    """Book GPU memory for a kernel that does not do so itself, wait for it, and call the kernel."""
    need = Need(Kind(task), name=task)
    cards = inventory.cards()
    with book(need, ledger=open_ledger(), profiles=Profiles(), cards=cards) as booking:
        return booking.call(function)
