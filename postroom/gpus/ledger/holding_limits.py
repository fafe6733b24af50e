"""Who may hold how much: the administrator's limits, while the waiting list is walked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .allocation import CardShare, Demand
from .ledger_rules import Cap


class HoldingLimits:
    """What users hold, and whether a request would be too much."""

    def __init__(
        self,
        caps: Mapping[int, tuple[Cap, ...]],
        shares: Sequence[CardShare],
        sizes_mib: Mapping[str, int],
        *,
        now: float = 0.0,
    ) -> None:
        self._caps = caps
        self._sizes_mib = sizes_mib
        self._now = now
        self._held: list[CardShare] = []
        if caps:
            self._held += shares

    def take(self, demand: Demand, uuids: Iterable[str]) -> None:
        """Count cards as held by the user of a demand."""
        if self._caps:
            self._held += [
                CardShare(uuid, demand.memory_mib, demand.uid, since=self._now) for uuid in uuids
            ]

    def over(self, demand: Demand) -> str:
        """Why a demand may not be granted, whichever cards are free; "": it may."""
        for cap in self._caps.get(demand.uid, ()):
            held = [share for share in self._held if share.uid in cap.members]
            if why := self._too_much(cap, held, demand):
                return why
        return ""

    def _too_much(self, cap: Cap, held: list[CardShare], demand: Demand) -> str:
        cards = len({share.uuid for share in held})
        limit = cap.limit
        if limit.cards is not None and cards + demand.count > limit.cards:
            never = f": {demand.count} at once are never granted"
            return f"{cap.who} holds {cards} cards, and may hold {limit.cards}" + (
                never if demand.count > limit.cards else ""
            )
        if limit.memory_mib is not None:
            mib = sum(self._mib(share.uuid, share.memory_mib) for share in held)
            size = max((self._mib(uuid, demand.memory_mib) for uuid in demand.among), default=0)
            if mib + size * demand.count > limit.memory_mib:
                return (
                    f"{cap.who} holds {mib} MiB of GPU memory, and may hold {limit.memory_mib} MiB"
                )
        if limit.hours is not None:
            longest_s = max((self._now - share.since for share in held if share.since), default=0.0)
            if longest_s > limit.hours * 3600:
                return (
                    f"{cap.who} has held a card for {longest_s / 3600:.1f} h, and may for "
                    f"{limit.hours:g} h at a stretch: release it first"
                )
        return ""

    def _mib(self, uuid: str, memory_mib: int | None) -> int:
        return self._sizes_mib.get(uuid, 0) if memory_mib is None else memory_mib
