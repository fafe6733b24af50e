"""Room for measurements: on a disk and in memory, where the last one does not slow the next."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator

from postroom.system.spread_folder import spread

# /tmp may be memory only.
ON_DISK = "/var/tmp"
PLACE = "POSTROOM_BENCH_PLACE"


@contextlib.contextmanager
def place() -> Iterator[None]:
    """A place for all measurements of one benchmark, which is cleared only when all are over.

    ext4 does not use an inode again within minutes of its deletion, and passes over those one by
    one: where many files were deleted, a new one costs a millisecond instead of 20 µs. So nothing
    is deleted meanwhile, and the folders are spread over the disk.
    """
    folder = _make(os.environ.get("TMPDIR", ON_DISK))
    spread(folder)
    os.environ[PLACE] = folder
    try:
        yield
    finally:
        del os.environ[PLACE]
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A private folder for one measurement."""
    if PLACE not in os.environ:
        with place(), scratch() as folder:
            yield folder
        return
    yield _make(os.environ[PLACE])


def touch_memory(size: int) -> None:
    """Have a virtual machine's host back this much memory before anybody is measured.

    Memory that no one has used yet may come from the host page by page, at a tenth of the speed.
    Otherwise the first system, or one that takes new memory each time, would pay for it.
    """
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def _make(where: str) -> str:
    return tempfile.mkdtemp(prefix="postroom-bench-", dir=where)
