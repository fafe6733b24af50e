"""Room for measurements: on a disk and in memory, where the last one does not slow the next."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator

# /tmp may be memory only.
ON_DISK = "/var/tmp"
PLACE = "POSTROOM_BENCH_PLACE"

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000


@contextlib.contextmanager
def place() -> Iterator[None]:
    """A place for all measurements of one benchmark, which is cleared only when all are over.

    ext4 does not use an inode again within minutes of its deletion, and passes over those one by
    one: where many files were deleted, a new one costs a millisecond instead of 20 µs. So nothing
    is deleted meanwhile, and the folders are spread over the disk.
    """
    folder = _make(os.environ.get("TMPDIR", ON_DISK))
    with contextlib.suppress(OSError):
        _spread(folder)
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


def _spread(folder: str) -> None:
    """Have ext4 put each folder made in this one into another part of the disk (chattr +T)."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        flags = struct.unpack("l", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)))[0]
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", flags | FS_TOPDIR_FL))
    finally:
        os.close(fd)
