"""The pool behind `.submit` of decorated functions: one for each base and folder of a program."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ..calls.call import context_here
from ..errors import NoAgentsError
from ..futures.calls_progress import CallsProgress
from ..futures.future_pool import FuturePool
from ..futures.program_end import wait_at_end
from ..gpus.cards import inventory
from ..gpus.cards.gpu_list import SlotSpec
from ..gpus.cards.inventory import Card
from ..gpus.ledger.card_overview import CardState, overview
from ..gpus.ledger.protocol import open_ledger
from ..gpus.memory.booking import MEASURING, held_for_us
from ..jobs import JobPool
from ..master import Master
from ..session.sessions import Sessions
from ..store.base import Base

Say = Callable[[str], None]

MOST_ON_A_CARD = 4  # sessions; each has torch, a CUDA context and some of the host's memory
GROW_S = 0.5  # between two checks whether one more session would help


class SharedCards:
    """Sessions that share their cards, where no others live.

    Each job reserves the memory that its kind needs, so jobs that fit run side by side. A session
    stays on one card, since CUDA cannot move: there is one per card at first, and more on a card
    with free memory while jobs wait.
    """

    def __init__(self, base: Base, *, say: Say) -> None:
        self._base = base
        self._say = say
        self._others = Sessions(base, say=say)
        self._sessions: Sessions | None = None
        self._cards: list[Card] = []
        self._grow_at = 0.0

    def step(self, now: float, pending: int) -> None:
        """Keep the sessions alive, and have one more where that would help."""
        sessions = self._sessions
        if sessions is None:
            if not self._others.others_serve():
                self._start()
            return
        sessions.step(now)
        if now < self._grow_at or pending <= len(sessions.slots):
            return
        self._grow_at = now + GROW_S
        for view in overview(open_ledger(), self._cards):
            card = view.card
            here = [place for place in sessions.slots if place.gpu == str(card.index)]
            # Where a job has the card as a whole, as when it is measured, others can only wait.
            if view.state is CardState.SHARED and len(here) < MOST_ON_A_CARD:
                free_mib = card.memory_mib - view.reserved_mib
                if free_mib * MOST_ON_A_CARD >= card.memory_mib:
                    agent = f"{card.index}{chr(ord('a') + len(here))}"
                    sessions.keep([*sessions.slots, SlotSpec(agent, str(card.index), share=True)])

    def words(self) -> str:
        """What is measured on which cards, and how many are idle; "" without cards of our own."""
        if not self._cards:
            return ""
        views = overview(open_ledger(), self._cards)
        measured: dict[str, dict[str, None]] = {}
        for view in views:
            for lease in view.leases:
                if lease.name.endswith(MEASURING):
                    what = lease.name.removesuffix(MEASURING)
                    measured.setdefault(what, {})[str(view.card.index)] = None
        parts = [f"measuring {what} on GPU {', '.join(on)}" for what, on in measured.items()]
        idle = sum(view.state is CardState.IDLE for view in views)
        return ", ".join([*parts, f"{idle} of {len(views)} GPUs idle"])

    def _start(self) -> None:
        cards = self._cards = [card for card in inventory.cards() if not card.problem]
        _refuse_our_own(cards)
        cores = len(os.sched_getaffinity(0))
        threads = max(1, cores // len(cards)) if cards else 1
        self._sessions = Sessions(self._base, say=self._say, options={"threads": threads})
        places = [SlotSpec(str(card.index), str(card.index), share=True) for card in cards]
        self._sessions.keep(places or [SlotSpec(str(core), "cpu") for core in range(cores)])
        self._say(
            f"starting sessions on {', '.join(f'GPU {card.index}' for card in cards) or 'the CPU'} "
            f"(importing torch may take a moment); log: {self._base.log}"
        )

    def job_ended(self) -> None:
        """A job has an outcome."""
        if self._sessions is not None:
            self._sessions.forgive()

    def close(self, *, now: bool) -> None:
        """End the sessions."""
        if self._sessions is not None:
            self._sessions.end(now=now)


def _refuse_our_own(cards: list[Card]) -> None:
    """Raise an error if jobs would wait forever for cards that this process holds itself."""
    held = held_for_us(open_ledger(), cards) if cards else []
    if held and len(held) == len(cards):
        raise NoAgentsError(
            "all visible GPUs are held for this process (by `postroom gpu run`, a shell or a job "
            "above it), so submitted jobs could not get one: call the function directly"
        )


_pools: dict[tuple[int, str], FuturePool] = {}
_making = threading.Lock()


def future_pool_for(base: str, *, say: Say) -> FuturePool:
    """Return this process's pool for a base."""
    key = (os.getpid(), os.path.realpath(base))  # a thread does not survive a fork
    with _making:
        pool = _pools.get(key)
        if pool is None or pool.broken is not None:
            pool = _pools[key] = wait_at_end(lambda: _make_pool(base, say=say))
        return pool


def _make_pool(base: str, *, say: Say) -> FuturePool:
    master = Master(base)
    shared = context_here()._asdict()

    def open_run() -> JobPool:
        return master.open(shared, project="decorated functions", one_job_per_letter=True)

    keeper = SharedCards(master.base, say=say)
    return FuturePool(
        master,
        open_run,
        keeper=keeper,
        ended=master.close,
        progress=CallsProgress(keeper.words),
    )


def close_all() -> None:
    """Wait for all submitted calls, and end the sessions that were started for them."""
    with _making:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()
        pool.gone.wait()
