"""Turns the GPUs that a user names into slots for sessions: GPU, lease and environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from ..errors import GpuError
from ..gpus.ledger.lease_environment import lease_environment
from ..store.base import Base
from .card_lease import CardLease
from .guardian import SessionSlot

PRELOAD = "POSTROOM_PRELOAD"


def open_slot(
    base: Base,
    gpu: str,
    *,
    agent_id: str | None = None,
    wait: bool = False,
    shares: bool = False,
    threads: int | None = None,
    preload: str | None = None,
    lazy: bool = False,
    later: bool = False,
    say: Callable[[str], None],
) -> tuple[SessionSlot, CardLease | None]:
    """Find a GPU, or several as in "0,1", take their lease, and make the worker's environment.

    With `later` the lease is not taken yet.

    Without a GPU on the machine, or when asked for "cpu", the slot is on the CPU, which is not
    leased: any number of sessions may use it. With `shares` no GPU is leased either: each job of
    the session books its part of one.
    """
    agent_id = agent_id or gpu.replace(".", "-").replace(",", "-")
    names = os.environ.get(PRELOAD, "torch") if preload is None else preload
    modules = [name for name in names.split(",") if name]
    # A session on the CPU has no lease, but a name of its own.
    hidden = {
        "CUDA_VISIBLE_DEVICES": "",
        "POSTROOM_GPU": "",
        **lease_environment(f"{base.root} {agent_id}", shared=False),
    }
    on_cpu = SessionSlot(
        agent_id, "cpu", "CPU", hidden, threads=threads, preload=modules, lazy=lazy
    )
    if gpu == "cpu":
        return on_cpu, None
    from ..gpus.cards import inventory  # a session on the CPU does without it

    if not inventory.cards():
        say("no GPU found: running on the CPU")
        return replace(on_cpu, any_accelerator=True), None
    cards = [inventory.find(word) for word in gpu.split(",")]
    for card in cards:
        if card.problem:
            raise GpuError(f"GPU {card.index} ({card.name}) cannot be used: {card.problem}")
    environment = inventory.pin(*cards)  # before the lease: it refuses several MIG slices
    lease = None if shares else CardLease(base, agent_id, cards, say=say)
    if lease is not None and not later:
        lease.take(wait=wait)
    # The worker, the commands of its session and other sessions share the card.
    environment |= lease_environment(f"{base.root} {agent_id}", shared=True)
    kinds = dict.fromkeys(card.name for card in cards) if shares else [cards[0].name]
    name = f"GPU {'+'.join(str(card.index) for card in cards)} {', '.join(kinds)}"
    uuids = ",".join(card.uuid for card in cards)
    slot = SessionSlot(
        agent_id,
        uuids,
        name,
        environment,
        threads,
        modules,
        lazy,
        gpus=1 if shares else len(cards),
        memory_mib=(max if shares else min)(card.memory_mib for card in cards),
        shares=shares,
    )
    return slot, lease


def choose_gpus(count: int, *, say: Callable[[str], None]) -> list[str]:
    """The first `count` GPUs; on a machine without any, `count` slots on the CPU."""
    from ..gpus.cards import inventory

    found = inventory.cards()
    if not found:
        say("no GPU found: the agents run on the CPU")
        return [str(number) for number in range(count)]
    usable = [card for card in found if not card.problem]
    if count > len(usable):
        names = ", ".join(f"{card.index} ({card.name})" for card in usable) or "none usable"
        raise GpuError(
            f"{count} GPUs were asked for, and this machine has {len(usable)}: {names}; "
            "ask for fewer, or start more sessions on one card with --gpus 0,0,1"
        )
    return [str(card.index) for card in usable[:count]]
