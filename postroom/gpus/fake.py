"""Simulated cards, for tests, demonstrations and machines with none."""

from __future__ import annotations

import re

from ..errors import GpuError
from .inventory import Card

SPEC = re.compile(r"(?:(\d+)x)?(\d+)([GM])(?::(.+))?")


def cards(spec: str) -> list[Card]:
    """Invent cards: `4x24G`, or `2x24G,2x80G:A100` for cards of several kinds."""
    found: list[Card] = []
    for part in filter(None, (part.strip() for part in spec.split(","))):
        match = SPEC.fullmatch(part)
        if match is None:
            raise GpuError(f"POSTROOM_FAKE_GPUS={spec}: {part!r} is not like 4x24G or 2x80G:A100")
        count, size, unit, name = match.groups()
        memory_mib = int(size) * (1024 if unit == "G" else 1)
        for _ in range(int(count or 1)):
            index = len(found)
            found.append(Card(index, f"FAKE-{index}", name or "Simulated", memory_mib, "fake"))
    return found
