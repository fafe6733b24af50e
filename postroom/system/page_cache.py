"""The page cache of large files: mapped by readers, and reused from one file to the next.

A file that was written stays in memory, and a new file needs new memory. A virtual machine may get
that from its host page by page, at a tenth of the speed of a copy. So a process remembers which of
its large files nobody needs in memory any more, and releases their memory just before it writes the
next one. They are written to disk earlier, while the process waits for something else.

This is advice to the operating system and changes no byte of a file. What is not on the disk yet,
or is mapped by a process, stays in memory; a released file is read from the disk again.
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

# Smaller files are not worth it.
LARGE = 4 << 20
# At most this many files are remembered.
MOST_FILES = 16

_SYNC_FILE_RANGE_WRITE = 2


class PageCache:
    """The large files of one process whose memory may be released."""

    def __init__(self) -> None:
        self._idle: deque[str] = deque(maxlen=MOST_FILES)

    def let_go(self, path: str) -> None:
        """Remember that nobody is going to read a file soon."""
        self._idle.append(path)

    def make_room(self, size: int) -> None:
        """Release up to `size` bytes of files that were let go, for a new large file."""
        freed = 0
        while self._idle and freed < size:
            with contextlib.suppress(OSError):
                freed += _drop(self._idle.popleft())


def save_soon(path: str) -> None:
    """Start writing a file to the disk, without waiting for it."""
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
    """Release the memory of a file; return how much that is at most."""
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
    """Allocate disk space for a new file: writing it is then a third faster on ext4."""
    # Not os.posix_fallocate, which writes zeros if the filesystem does not support it. If this
    # fails, or the disk is full, the write reports it.
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
