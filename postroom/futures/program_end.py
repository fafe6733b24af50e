"""At the end of a program: wait for its jobs, or cancel them where Ctrl-C has ended it.

In a notebook, an interrupted cell cancels all waiting jobs of the program. The end of the kernel
ends them all, since nobody is left to wait for them.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..text.progress_bar import in_notebook
from ..text.safe_text import say
from .future_pool import FuturePool

# A program that ends and waits longer for its jobs says so.
PATIENCE_S = 5.0

_pools: weakref.WeakSet[FuturePool] = weakref.WeakSet()
_ending = False
_notebooks: set[int] = set()  # the processes whose interrupted cells we hear of


def wait_at_end(make: Callable[[], FuturePool]) -> FuturePool:
    """Make a pool, and have the program wait for its jobs before it ends."""
    if _ending:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")
    pool = make()
    _pools.add(pool)
    if in_notebook() and os.getpid() not in _notebooks:
        _notebooks.add(os.getpid())
        sys.modules["IPython"].get_ipython().events.register("post_run_cell", _cell_ended)
    return pool


def _cell_ended(result: Any) -> None:
    if isinstance(result.error_in_exec, KeyboardInterrupt):
        for pool in list(_pools):
            pool.cancel_waiting()


@atexit.register
def _end_all() -> None:
    global _ending
    _ending = True
    pools = [pool for pool in _pools if not pool.gone.is_set()]
    if _ended_by_interrupt() or in_notebook():
        _stop(pools)
        return
    for pool in pools:
        pool.close()
    try:
        _wait(pools)
    except KeyboardInterrupt:
        _stop(pools)


def _wait(pools: list[FuturePool]) -> None:
    until = time.monotonic() + PATIENCE_S
    told = False
    for pool in pools:
        if not pool.gone.wait(max(0.0, until - time.monotonic())):
            if not told and pool.n_pending:
                jobs = sum(one.n_pending for one in pools)
                say(f"waiting for {jobs} jobs; Ctrl-C ends them")
                told = True
            pool.gone.wait()


def _stop(pools: list[FuturePool]) -> None:
    pending = sum(pool.n_pending for pool in pools)
    running = sum(pool.n_running for pool in pools)
    for pool in pools:
        pool.close(now=True)
    for pool in pools:
        pool.gone.wait()
    if pending:
        waited = pending - running
        say(f"interrupted: cancelled {waited} jobs that waited, ended {running} that ran")


def _ended_by_interrupt() -> bool:
    """Return whether Ctrl-C is ending this program; at a prompt, it ends only a call."""
    return not hasattr(sys, "ps1") and isinstance(
        getattr(sys, "last_value", None), KeyboardInterrupt
    )
