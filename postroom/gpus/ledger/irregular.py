"""What is in the ledger although no process of ours would have put it there. Pure.

Each user's processes decide for themselves, by the same rules: who writes files by hand can take
what the rules do not give. Nobody can hide it: the files have an owner, and this names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .ledger_rules import Cap
from .protocol import LeaseEntry


def irregularities(
    held: Sequence[LeaseEntry],
    waiting: Sequence[LeaseEntry],
    caps: Mapping[int, tuple[Cap, ...]],
) -> list[str]:
    """Sentences about what breaks the rules, and whose it is."""
    found = [f"request {entry.lease_id}: {entry.doubt}" for entry in waiting if entry.doubt]
    whole: dict[str, LeaseEntry] = {}
    for entry in sorted(held, key=lambda entry: entry.granted_at or 0.0):
        for uuid in entry.cards if entry.memory_mib is None else ():
            first = whole.setdefault(uuid, entry)
            if (first.uid, first.group) != (entry.uid, entry.group):
                found.append(
                    f"user {entry.user} (pid {entry.process.pid}) took card {uuid}, which user "
                    f"{first.user} holds: its lease was written by hand"
                )
    for cap in {cap.who: cap for several in caps.values() for cap in several}.values():
        cards = len({uuid for e in held if e.uid in cap.members for uuid in e.cards})
        if cap.limit.cards is not None and cards > cap.limit.cards:
            found.append(f"{cap.who} holds {cards} cards, and may hold {cap.limit.cards}")
    return found
