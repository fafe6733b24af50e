"""A task in a session that shares GPUs: it books GPU memory, as every job there does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..gpus.cards.inventory import CardWatch
from ..gpus.devices.device import Device
from ..gpus.ledger.protocol import open_ledger
from ..gpus.memory.booking import Need, book
from ..gpus.memory.profiles import Kind, Profiles

R = TypeVar("R")


# One for all jobs of a worker, and all that is asked for them: it has a child process of its own.
_watch: CardWatch | None = None


def card_watch() -> CardWatch:
    """What asks the driver for the jobs of this worker."""
    global _watch
    _watch = _watch or CardWatch()
    return _watch


def call_booked(task: str, function: Callable[[], R], *, device: Device) -> R:
    """Book GPU memory for a kernel that does not do so itself, wait for it, and call the kernel.

    The kernel's card is the booked one. What earlier jobs have cached in this process is given back
    first: it is not part of what this one needs.
    """
    watch = card_watch()
    device.free()
    look = watch.cards
    with book(
        Need(Kind(task), name=task),
        ledger=open_ledger(cards=look),
        profiles=Profiles(),
        cards=look(),
        look=look,
    ) as booking:
        if device.count:
            device.select(booking.cards[0].uuid)
        return booking.call(function, watch=watch)
