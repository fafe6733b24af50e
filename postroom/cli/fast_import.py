"""Faster imports for a command that has little else to do."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection, which would take a tenth of the time.

    What is imported stays in memory, so later collections, also those of a fork, skip it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
