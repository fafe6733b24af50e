"""How far a pool is, as a line: done, running, failed, how fast, how long it will take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from ..jobs import JobPool
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.mailbox import read_letter
from ..text.progress_bar import ProgressBar


class PoolMaster(Protocol):
    """What it asks a Master."""

    @property
    def base(self) -> Base: ...

    @property
    def obstacle(self) -> str: ...

    def agents(self) -> Sequence[str]: ...


class PoolProgress:
    """Shows how far a pool is; to be called after each round."""

    def __init__(self, master: PoolMaster, pool: JobPool) -> None:
        self._master = master
        self._pool = pool
        self._bar = ProgressBar()
        self._began = time.monotonic()
        self._already = pool.n_done

    def __call__(self, pool: JobPool) -> None:
        if pool.done:
            self._bar.end(pool.n_done, pool.total, self._line())
        elif self._bar.is_due():
            self._bar.update(pool.n_done, pool.total, self._line())

    def close(self) -> None:
        """Show nothing more; what is shown stays."""
        self._bar.end(self._pool.n_done, self._pool.total, self._line())

    def _line(self) -> str:
        pool, total, done = self._pool, self._pool.total, self._pool.n_done
        rate = (done - self._already) / max(time.monotonic() - self._began, 1e-9)
        left = "time left unknown"
        if rate and total is not None:
            left = f"{(total - done) / rate:.0f} s left"
        if self._master.obstacle:
            left = f"waiting: {self._master.obstacle}"
        running = count_running(self._master, pool)
        of = "?" if total is None else total
        return f"{done}/{of} done, {running} running, {pool.n_failed} failed, {rate:.1f}/s, {left}"


def count_running(master: PoolMaster, pool: JobPool) -> int:
    """How many agents are running jobs of this pool."""
    files = LocalFiles()
    letters = (read_letter(files, master.base, agent) for agent in master.agents())
    return sum(letter is not None and letter.run == pool.run for letter in letters)
