"""Leases that have ended: one line each, in the folder of their user.

The process that unlinks the file of a dead lease writes its line: one of its user, or of root. A
user's lines count for that user, root's for everybody. The file is bounded: after 1 MiB a new one
is begun, and one old file is kept, which is some ten thousand leases of each user.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from .protocol import LeaseEntry

_MOST_CARDS = 1024


class EndedLease(NamedTuple):
    """A lease that has ended; `weight` is how many cards it counted for."""

    lease_id: str
    uid: int
    name: str
    cards: tuple[str, ...]
    weight: float
    asked_at: float
    granted_at: float
    ended_at: float

    @classmethod
    def of(cls, entry: LeaseEntry, ended_at: float) -> EndedLease:
        """The lease of an entry, as if it ended at a moment."""
        granted_at = entry.asked_at if entry.granted_at is None else entry.granted_at
        return cls(
            entry.lease_id,
            entry.uid,
            entry.name,
            entry.cards,
            entry.counts_for,
            min(entry.asked_at, granted_at),
            granted_at,
            max(ended_at, granted_at),
        )

    def encode(self) -> bytes:
        """Return its line."""
        return json.dumps([1, *self], separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> EndedLease | None:
        """Read a line; None if it makes no sense."""
        try:
            version, lease_id, uid, name, cards, *numbers = json.loads(line)
            weight, asked_at, granted_at, ended_at = (float(number) for number in numbers)
            good = (
                version == 1
                and isinstance(uid, int)
                and 0 < len(cards) <= _MOST_CARDS
                and 0 <= weight <= len(cards)
                and 0 <= asked_at <= granted_at <= ended_at
                and math.isfinite(ended_at)
            )
            uuids = tuple(str(uuid) for uuid in cards)
            return (
                cls(str(lease_id), uid, str(name), uuids, weight, asked_at, granted_at, ended_at)
                if good
                else None
            )
        except (ValueError, TypeError, RecursionError, OverflowError):
            return None


def read_ended(text: bytes, writer: int) -> list[EndedLease]:
    """Read the lines of a user's file; nobody but root can write down what another has held."""
    found = [EndedLease.decode(line) for line in text.splitlines()]
    return [one for one in found if one is not None and writer in (0, one.uid)]
