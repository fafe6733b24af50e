"""The lease of a session's GPUs, which it holds, gives back and takes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import GpuError
from ..store.base import Base

if TYPE_CHECKING:
    from ..gpus.cards.inventory import Card
    from ..gpus.ledger.protocol import Lease, Ledger
    from ..gpus.ledger.waiting import CardClaim


class CardLease:
    """Whole GPUs, for all processes of one session."""

    def __init__(
        self, base: Base, agent_id: str, cards: list[Card], *, say: Callable[[str], None]
    ) -> None:
        self._root = base.root
        self._agent_id = agent_id
        self._cards = cards
        self._say = say
        self._lease: Lease | None = None
        self._ledger: Ledger | None = None
        self._visible: list[Card] = []  # of the machine, as they were when this was first asked

    @property
    def fds(self) -> tuple[int, ...]:
        """What every process of the session has open while the GPUs are held."""
        return () if self._lease is None else self._lease.fds

    def take(
        self,
        *,
        wait: bool = False,
        yields: bool = False,
        wanted: Callable[[], bool] | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> tuple[int, ...]:
        """Lease the GPUs, and report processes that use them without a lease.

        Raises CardHeld if they are not free, or are not `wanted` any more.
        """
        from ..gpus.ledger.protocol import LeaseRequest, open_ledger
        from ..gpus.ledger.waiting import GIVE_BACK_S

        ledger = self._ledger = open_ledger()
        request = LeaseRequest(
            cards=tuple(card.uuid for card in self._cards),
            name=f"session {self._agent_id} of {self._root}",
            group=self._root,
            # Jobs that would still run when a reservation begins are not sent to it.
            lasts_s=GIVE_BACK_S,
            yields=yields,
        )
        waiting = waiting or self._tell
        self._lease = ledger.acquire(request, None if wait else 0, wanted=wanted, waiting=waiting)
        for usage in [one for card in self._cards for one in card.processes if one.compute]:
            self._say(f"note: this card is also used by {usage.describe()}, without a lease")
        return self.fds

    def _tell(self, why: str) -> None:
        ids = ",".join(str(card.index) for card in self._cards)
        self._say(f"waiting for GPU {ids}: {why}")

    def claimed(self, *, yields: bool) -> CardClaim:
        """Whether the GPUs should go to somebody else now, since it is their turn.

        If we yield, it is anybody's turn who asks for them.
        """
        from ..gpus.cards import inventory
        from ..gpus.ledger.waiting import CardClaim

        if self._lease is None or self._ledger is None:
            return CardClaim()
        try:
            self._visible = self._visible or inventory.cards() or self._cards
            if self._lease.entry.yields != yields:
                self._lease.amend(yields=yields)
            return self._ledger.claimed(self._lease, self._visible)
        except (GpuError, OSError):
            return CardClaim()  # nobody knows, so it stays as it is

    def release(self) -> None:
        """Give the GPUs back; what a job left running holds them until it ends."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
