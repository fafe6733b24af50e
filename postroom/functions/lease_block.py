"""`with postroom.lease() as gpus:`: GPUs for a part of one's own program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import GpuError
from ..gpus.cards import inventory
from ..gpus.cards.inventory import Card
from ..gpus.devices.device import device_in_use
from ..gpus.ledger.lease_environment import lease_environment
from ..gpus.ledger.protocol import LeaseRequest, open_ledger
from ..gpus.memory.booking import held_for_us
from ..text.safe_text import say
from ..text.sizes import to_mib
from .in_process import home_of, in_turn, inside_job, pinned


@contextmanager
def lease(
    *,
    memory: str | None = None,
    count: int = 1,
    gpus: str | None = None,
    pack: bool = False,
    timeout_s: float | None = None,
    name: str = "",
) -> Iterator[tuple[Card, ...]]:
    """Wait for GPUs and hold them while the block runs; only they are visible to CUDA.

    Use it before anything initialises CUDA in this process. CUDA cannot move: a process that has
    initialised it waits for the same GPU again, or gets an error if that is not one known GPU.
    The lease ends with the block, or with this process and its forks, however they end. If this
    process or one above it holds GPUs already (`postroom gpu run`, a session, another `lease`),
    the block uses those.

    `memory`: share a GPU and reserve this much of it ("8G"); by default the whole GPU.
    `count`: number of GPUs. `gpus`: use these ("0,2", or UUIDs) instead of any.
    `pack`: with `memory`, use the fullest GPU that fits.
    `timeout_s`: raise `CardHeld` after this time; by default wait for ever.
    `name`: what others see in `postroom gpu list`; by default the name of the program.
    """
    name = name or os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    with in_turn(name):
        cards = inventory.cards(links=count > 1)
        wanted = inventory.pick(cards, gpus) if gpus else []
        ledger = open_ledger()
        held = held_for_us(ledger, cards)
        if held:
            with inside_job():
                yield _part_of(held, wanted, count)
            return
        home = home_of(cards)
        if home is not None:
            _check_home(home, wanted, count)
            wanted = [home]
        request = LeaseRequest(
            count=count,
            cards=tuple(card.uuid for card in wanted),
            memory_mib=to_mib(memory) if memory else None,
            name=name,
            pack=pack,
        )
        with ledger.acquire(
            request, timeout_s, waiting=lambda why: say(f"{name} waits: {why}"), cards=cards
        ) as granted:
            chosen = tuple(card for card in cards if card.uuid in granted.cards)
            try:
                environment = lease_environment(granted.lease_id, shared=memory is not None)
                with pinned(inventory.pin(*chosen) | environment), inside_job():
                    yield chosen
            finally:
                device_in_use().free()


def _part_of(held: list[Card], wanted: list[Card], count: int) -> tuple[Card, ...]:
    """Return the GPUs that are held already, if they are what is asked for."""
    missing = [card.visible_id for card in wanted if card not in held]
    if missing or count > len(held):
        have = ", ".join(card.visible_id for card in held)
        asked = f"GPU {missing[0]}" if missing else f"{count} GPUs"
        raise GpuError(
            f"{asked} cannot be leased here: this process, or one above it, already holds GPU "
            f"{have}, and works on that; ask for all GPUs at once, in one place"
        )
    return tuple(held)


def _check_home(home: Card, wanted: list[Card], count: int) -> None:
    if count > 1 or (wanted and wanted != [home]):
        raise GpuError(
            f"this process has already initialised CUDA on GPU {home.visible_id}, and CUDA cannot "
            "move: lease that one GPU, or lease before anything uses CUDA"
        )
