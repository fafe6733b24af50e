"""The memory of large files: mapped by readers, and handed on from one file to the next.

What was written stays in memory, and a new file takes new memory. A virtual machine may get that
from its host page by page, at a tenth of the speed of a copy. So a process remembers which of its
large files nobody needs in memory any more, and lets their memory go just before it writes the
next. That they are on the disk by then is seen to while the process waits for something else.

This is advice to the kernel, and changes no byte of a file: what the disk does not have yet, or
somebody has mapped, stays in memory, and whoever reads such a file again gets it from the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterator
from functools import cache

# From this size on it is worth the trouble.
LARGE = 4 << 20
# So many files are remembered, and no more.
MOST_FILES = 16

_SYNC_FILE_RANGE_WRITE = 2


class PageCache:
    """The large files whose memory one process may hand on."""

    def __init__(self) -> None:
        self._idle: deque[str] = deque(maxlen=MOST_FILES)

    def let_go(self, path: str) -> None:
        """Remember that nobody is going to read a file soon."""
        self._idle.append(path)

    def make_room(self, size: int) -> None:
        """Free so much memory, if so much was let go: a large file is about to come, or has."""
        freed = 0
        while self._idle and freed < size:
            with contextlib.suppress(OSError):
                freed += _drop(self._idle.popleft())


def save_soon(path: str) -> None:
    """Have the disk begin with what only memory has, and do not wait for it."""
    with contextlib.suppress(OSError), _opened(path) as fd:
        _libc().sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


def map_file(fd: int, size: int) -> memoryview:
    """Map a file into memory; it stays mapped while the view, or an array on it, is alive.

    Python's own mmap keeps a descriptor for each mapping, so that a thousand large results would
    exhaust them.
    """
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    region = (ctypes.c_char * size).from_address(address)
    weakref.finalize(region, libc.munmap, address, size)
    return memoryview(region).cast("B").toreadonly()


def _drop(path: str) -> int:
    """Let the memory of a file go; return how much that can be at most."""
    with _opened(path) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.fstat(fd).st_size


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def allocate(fd: int, size: int) -> None:
    """Give a new file its room on the disk at once: filling it is then a third faster on ext4."""
    # Not os.posix_fallocate, which writes zeros where the filesystem knows no better. Whether it
    # worked, and whether the disk is full, is told by the write.
    _libc().fallocate(fd, 0, 0, size)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    offset = ctypes.c_int64
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, offset]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, offset, offset]
    libc.sync_file_range.argtypes = [ctypes.c_int, offset, offset, ctypes.c_uint]
    return libc
