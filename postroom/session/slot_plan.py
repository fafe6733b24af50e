"""Which slots a program asks for: a number of agents, all GPUs, or these."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import GpuError
from ..gpus.cards import inventory
from ..gpus.cards.gpu_list import SlotSpec, parse_gpus
from ..gpus.ledger.protocol import open_ledger

Agents = int | str | Sequence[int | str]


def plan_slots(agents: Agents | None, gpus: int | None) -> list[SlotSpec]:
    """The slots that a user asks for: a number of agents, "all" cards, or these cards.

    Each agent has `gpus` cards; 0: none, it runs on the CPU. By default each card has an agent, and
    on a machine without cards each core. Of several cards, those that nobody holds are taken first.
    """
    cards = [card for card in inventory.cards() if not card.problem] if gpus != 0 else []
    if cards and isinstance(agents, int):
        held = {uuid for entry in open_ledger().holders() for uuid in entry.cards}
        cards.sort(key=lambda card: card.uuid in held)
    if gpus and not cards:
        raise GpuError(f"gpus={gpus} was asked for, and no GPU of this machine can be used")
    each = gpus or 1
    if isinstance(agents, int):
        count = agents
    elif agents is None or agents == "all":
        count = len(cards) // each if cards else len(os.sched_getaffinity(0))
    else:
        named = agents if isinstance(agents, str) else ",".join(map(str, agents))
        return parse_gpus(named)
    if count < 1:
        raise ValueError("max_workers must be greater than 0: it is how many agents make the calls")
    if not cards:
        return [SlotSpec(str(number), "cpu") for number in range(count)]
    if count * each > len(cards):
        raise GpuError(
            f"{count} agents with {each} GPUs each were asked for, and {len(cards)} GPUs can be "
            "used: ask for fewer agents, or for gpus=0 to run on the CPU"
        )
    indices = [str(card.index) for card in cards]
    groups = [",".join(indices[n * each : (n + 1) * each]) for n in range(count)]
    return [SlotSpec(group.replace(",", "-"), group) for group in groups]
