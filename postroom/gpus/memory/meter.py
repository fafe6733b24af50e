"""Measures a running job: samples from the driver what its process tree uses of its cards.

At the end torch's own peak is included. It misses nothing between two samples, but does not include
the CUDA context, other libraries and child processes.

In a container, and under WSL, the driver does not say which process uses what. Then a job that has
its card alone is measured by what the card itself shows, compared with before. Of a job beside
others nothing can be said: it is not `attributed`, and nobody may take it for a small one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ...errors import GpuError
from ...system import processes
from ..cards.inventory import Card, CardWatch, Usage
from ..devices.device import device_in_use
from .packing import CONTEXT_MIB, Growth

FIRST_S = 0.02  # between the first samples; the interval grows up to LATER_S
LATER_S = 1.0
KEPT = 500  # samples of a timeline; beyond that every second one is dropped


@dataclass(frozen=True)
class Sample:
    """One sample: the seconds since the start, and the values of the card that is used most."""

    seconds: float
    used_mib: int
    utilisation: int | None = None


@dataclass
class Meter:
    """Samples a process tree on some cards, in a thread, until it is closed."""

    cards: Sequence[str]  # uuids
    pid: int = field(default_factory=os.getpid)
    on_sample: Callable[[Sample], None] | None = None
    before: Mapping[str, Card] = field(default_factory=dict)  # the cards that it has alone: then
    watch: CardWatch | None = None  # asks the driver; without one, a new child process does
    peak_mib: int = 0
    attributed: bool = True  # the driver told at every sample what the process tree uses
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._growth = Growth(0.0)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._step = 1
        self._thread = threading.Thread(target=self._run, name="postroom meter", daemon=True)
        device_in_use().reset_peak()

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self._began

    @property
    def settled(self) -> bool:
        """Whether the job has stopped growing."""
        return self._growth.settled(self.seconds)

    def _run(self) -> None:
        pause_s = FIRST_S
        watch = self.watch or CardWatch()
        try:
            with suppress(GpuError, OSError):
                while True:
                    self.look(watch.cards())
                    if self._stop.wait(pause_s):
                        self.look(watch.cards())
                        return
                    pause_s = min(pause_s * 1.2, LATER_S)
        finally:
            if watch is not self.watch:
                watch.close()

    def look(self, cards: Sequence[Card]) -> None:
        """Add one sample."""
        best = Sample(self.seconds, 0)
        for card in cards:
            if card.uuid in self.cards:
                used_mib = used_by(card, self.pid)
                if card.uuid in self.before:
                    used_mib = max(used_mib, grown(card, self.before[card.uuid], self.pid))
                elif not used_mib and not is_attributed(card):
                    self.attributed = False
                if used_mib >= best.used_mib:
                    best = Sample(self.seconds, used_mib, card.utilisation)
        with self._lock:
            self.peak_mib = max(self.peak_mib, best.used_mib)
            self._growth.add(best.seconds, best.used_mib)
            self.samples.append(best)
            if len(self.samples) > KEPT:
                del self.samples[1::2]
        if self.on_sample is not None:
            self.on_sample(best)

    def finish(self) -> int:
        """Stop, and return the peak, torch's own included."""
        self.close()
        if self.pid == os.getpid():
            own_mib = device_in_use().peak_mib()
            if own_mib:
                self.peak_mib = max(self.peak_mib, own_mib + CONTEXT_MIB)
        return self.peak_mib

    def timeline(self) -> str:
        """The samples as lines of CSV."""
        with self._lock:
            rows = [
                f"{s.seconds:.2f},{s.used_mib},{'' if s.utilisation is None else s.utilisation}"
                for s in self.samples
            ]
        return "\n".join(["seconds,memory_mib,utilisation", *rows, ""])


def used_by(card: Card, pid: int) -> int:
    """Return what a process and its descendants use of a card."""
    return sum(usage.used_mib or 0 for usage in card.processes if _is_below(usage, pid))


def _is_below(usage: Usage, pid: int) -> bool:
    return usage.pid == pid or pid in processes.ancestors(usage.pid)


def grown(card: Card, before: Card, pid: int) -> int:
    """Return by how much the use of a card has grown, but for processes of others that we know.

    These are the ones that were there before, and on a machine whose pids are ours all that are not
    descendants of `pid`.
    """
    others = {usage.pid for usage in before.processes if not _is_below(usage, pid)}
    if processes.in_first_pid_namespace():
        new = [usage for usage in card.processes if usage.user != "?"]
        others |= {usage.pid for usage in new if not _is_below(usage, pid)}

    def ours(seen: Card) -> int:
        known = [usage.used_mib or 0 for usage in seen.processes if usage.pid in others]
        return (seen.used_mib or 0) - sum(known)

    return max(0, ours(card) - ours(before))


def is_attributed(card: Card) -> bool:
    """Whether the driver's list of processes accounts for what is used of a card."""
    return card.unexplained_mib < CONTEXT_MIB and not any(
        usage.used_mib is None for usage in card.processes
    )
