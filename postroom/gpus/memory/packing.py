"""How much of a card a job is given, and for how long: pure rules, no clock and no disk.

* A job whose need nobody knows gets a card of its own, and one of its kind at a time: it measures.
* A job whose need is declared or learned reserves that much from its first moment, with the CUDA
  context, whatever it uses yet; and the ledger counts what it uses, if that is more.
* A measuring job that has stopped growing gives back what it does not need, and its kind is known.

Who gets which card is `allocation`; the simulation in `benchmarks/packing.py` runs both of them on
simulated time, and `booking` runs them on real cards.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTEXT_MIB = 512  # what CUDA takes of a card before the first tensor
STEP_MIB = 64  # reservations are multiples of this
HEADROOM = 1.02  # two runs of the same code are never quite equal
SETTLE_S = 10.0  # who has not grown for so long, and for half of its life, has stopped growing
GROWTH_MIB = 32  # what is less than this is no growth
EXCESS = 1.1  # so far beyond its reservation, a job is spoken to


@dataclass(frozen=True)
class Learned:
    """What is known of a kind: its peak on one card with the context, or how much is too little."""

    peak_mib: int | None = None
    at_least_mib: int = 0


def reservation(learned: Learned, declared_mib: int | None, *, largest_mib: int) -> int | None:
    """Return how much of a card to ask for; None: nobody knows, so a whole one, to measure.

    What was declared is taken for true until it was shown to be too little. A job that fits on the
    largest card without its margins is not refused for them.
    """
    if learned.at_least_mib >= largest_mib > 0:
        # Nothing here can run it: ask for more than there is, so that the ledger says so.
        return learned.at_least_mib + STEP_MIB
    needs_mib = bare_mib = 0
    if learned.peak_mib is not None:
        bare_mib = learned.peak_mib
        needs_mib = int(learned.peak_mib * HEADROOM)
    if declared_mib is not None:
        bare_mib = max(bare_mib, declared_mib)
        needs_mib = max(needs_mib, declared_mib + CONTEXT_MIB)
    needs_mib = -(-needs_mib // STEP_MIB) * STEP_MIB
    if needs_mib <= learned.at_least_mib:
        return None
    return min(needs_mib, largest_mib) if bare_mib <= largest_mib else needs_mib


class Growth:
    """Says when a job's memory has stopped growing, from readings with their times."""

    def __init__(self, started: float) -> None:
        self.peak_mib = 0
        self._started = started
        self._grown = started

    def add(self, now: float, used_mib: int) -> None:
        """Take in a reading."""
        if used_mib > self.peak_mib + GROWTH_MIB:
            self._grown = now
        self.peak_mib = max(self.peak_mib, used_mib)

    def settled(self, now: float) -> bool:
        """Say whether it has stopped growing; a job that has used nothing yet has not."""
        quiet_s = now - self._grown
        return self.peak_mib > 0 and quiet_s >= max(SETTLE_S, (now - self._started) / 2)


def advice(name: str, peak_mib: int, card_mib: int, seconds: float) -> str:
    """Say in one line what a job needed, for how long, and how many would fit on one card."""
    lasted = f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    said, colon, fitting = needed(peak_mib, card_mib).partition(":")
    return f"{name}: {said}, {lasted}{colon}{fitting}"


def needed(peak_mib: int, card_mib: int) -> str:
    """Say what a job needed, and how many would fit on one card."""
    if not peak_mib:
        return "used no memory of the card that could be seen"
    text = f"peak {peak_mib / 1024:.1f} of {card_mib / 1024:.0f} GB"
    fitting = card_mib // reserved if (reserved := int(peak_mib * HEADROOM)) else 0
    words = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    if fitting < 2:
        return f"{text}: it needs a card of its own"
    return f"{text}: {words[fitting] if fitting < len(words) else fitting} fit on one card"
