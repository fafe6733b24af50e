"""How much of a card a job reserves, and for how long: pure rules, without a clock or a disk.

* A job with an unknown need gets a whole card, one job of its kind at a time: it is measured.
* A job with a declared or learned need reserves that much and the CUDA context from its first
  moment. If it uses more, the ledger counts what it uses.
* When a measured job has stopped growing, it releases what it does not need, and its kind is known.

`allocation` decides which job gets which card. The simulation in `benchmarks/packing.py` runs both
on simulated time, and `booking` runs them on real cards.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTEXT_MIB = 512  # what CUDA uses of a card before the first tensor
STEP_MIB = 64  # reservations are multiples of this
HEADROOM = 1.02  # two runs of the same code differ a little
SETTLE_S = 10.0  # without growth for this long, and for half its life, a job has settled
GROWTH_MIB = 32  # less than this is not growth
EXCESS = 1.1  # warn about a job that uses this many times its reservation


@dataclass(frozen=True)
class Learned:
    """What is known of a kind: its peak on one card with the context, and what was too little."""

    peak_mib: int | None = None
    at_least_mib: int = 0


def reservation(learned: Learned, declared_mib: int | None, *, largest_mib: int) -> int | None:
    """Return how much of a card to reserve; None if unknown: then a whole card, to measure.

    A declared need is believed until it turns out to be too little. A job that fits on the largest
    card only without the margins is not refused.
    """
    if learned.at_least_mib >= largest_mib > 0:
        # No card can run it: request more than there is, so that the ledger refuses it.
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
    """Detects from samples when the memory of a job has stopped growing."""

    def __init__(self, started: float) -> None:
        self.peak_mib = 0
        self._started = started
        self._grown = started

    def add(self, now: float, used_mib: int) -> None:
        """Add a sample."""
        if used_mib > self.peak_mib + GROWTH_MIB:
            self._grown = now
        self.peak_mib = max(self.peak_mib, used_mib)

    def settled(self, now: float) -> bool:
        """Whether it has stopped growing; a job that has used nothing yet has not."""
        quiet_s = now - self._grown
        return self.peak_mib > 0 and quiet_s >= max(SETTLE_S, (now - self._started) / 2)


def advice(name: str, peak_mib: int, card_mib: int, seconds: float) -> str:
    """Return a line that says what a job needed, how long it took, and how many fit on one card."""
    lasted = f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    said, colon, fitting = needed(peak_mib, card_mib).partition(":")
    return f"{name}: {said}, {lasted}{colon}{fitting}"


def needed(peak_mib: int, card_mib: int) -> str:
    """Return what a job needed, and how many fit on one card."""
    if not peak_mib:
        return "no use of GPU memory was seen"
    text = f"peak {peak_mib / 1024:.1f} of {card_mib / 1024:.0f} GB"
    fitting = card_mib // reserved if (reserved := int(peak_mib * HEADROOM)) else 0
    words = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    if fitting < 2:
        return f"{text}: it needs a card of its own"
    return f"{text}: {words[fitting] if fitting < len(words) else fitting} fit on one card"
