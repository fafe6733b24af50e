"""The page's one look at the base: whoever asks, one thread reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..queue.actions import Answer, wait_settled
from ..queue.queue_view import QueueView
from ..queue.rows import Overview
from ..store.base import Base
from ..store.files import Files, LocalFiles

T = TypeVar("T")
# Those who ask within so long see the same.
FRESH_S = 0.4
# A page that comes back at once would show what was before.
SETTLE_S = 1.5


class QueueReader:
    """Asks the view, one question after another, beside the loop that serves."""

    def __init__(self, base: Base, files: Files | None = None) -> None:
        self.base = base
        self.files = files or LocalFiles()
        self._view = QueueView(base, self.files)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self.card_names: dict[str, str] = {}  # by uuid
        self._overview: tuple[float, Overview] | None = None

    async def look(self, question: Callable[[QueueView], T]) -> T:
        """Ask the view."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, question, self._view)

    async def overview(self) -> Overview:
        """The whole at one glance; many who ask at once cost one look."""
        return await self.look(self._look_over)

    async def settle(self, answer: Answer) -> bool:
        """Give the acting Master a moment to do what was asked; others may look meanwhile."""
        acts = await self.look(lambda view: view.look().master_pid is not None)
        patience_s = SETTLE_S if acts else 0.0
        return await asyncio.to_thread(wait_settled, self._view, answer, patience_s)

    def close(self) -> None:
        """Answer no more."""
        self._thread.submit(self._view.close)
        self._thread.shutdown(wait=False)

    def _look_over(self, view: QueueView) -> Overview:
        now = time.monotonic()
        if self._overview is None or now - self._overview[0] > FRESH_S:
            look = view.overview()
            self.card_names |= {card.uuid: f"GPU {card.index} {card.name}" for card in look.cards}
            self._overview = now, look
        return self._overview[1]

    def forget(self) -> None:
        """Something was asked for just now: the next look is a new one."""
        self._overview = None
