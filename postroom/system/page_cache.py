"""The memory of large files: mapped by readers, and reused from one file to the next.

A file that was written stays in memory, and a new file needs new memory. A virtual machine may get
that from its host page by page, at a tenth of the speed of a copy. There are two ways around it:

- `Spares`: a file that nobody needs any more loses its name, and the next file is written over it,
  into the same pages and blocks. Whoever has mapped such a file would see it change. So files that
  may become spares are read into `ReadBuffers`, which are reused in the same way: a buffer belongs
  to its process alone, and is free when no object uses it.
- `PageCache`: of files that stay, a process remembers those that nobody needs in memory, and
  releases their memory just before it writes the next large one. This is advice to Linux and
  changes no byte: what is not on the disk yet, or is mapped, stays in memory.
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
# A process keeps at most so many bytes of spare files, and so many free buffers.
MOST_SPARE_BYTES = 512 << 20
MOST_FREE_BUFFERS = 3
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


class Spares:
    """Files without use, to write the next ones over. A fork does not inherit them."""

    def __init__(self) -> None:
        self._spares: list[tuple[int, str]] = []  # size, path
        self._bytes = 0
        self._pid = os.getpid()

    def add(self, path: str) -> None:
        """Keep a file, whose name nobody else knows; or remove it, if there are enough."""
        self._forget_those_of_parent()
        size = os.lstat(path).st_size
        if self._bytes + size > MOST_SPARE_BYTES:
            os.unlink(path)
            return
        self._spares.append((size, path))
        self._bytes += size

    def take(self, size: int) -> str | None:
        """A file to write over with so many bytes, the nearest in size; None: there is none."""
        self._forget_those_of_parent()
        if not self._spares:
            return None
        found = min(self._spares, key=lambda spare: abs(spare[0] - size))
        self._spares.remove(found)
        self._bytes -= found[0]
        return found[1]

    def remove(self) -> None:
        """Remove them all."""
        while (path := self.take(0)) is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _forget_those_of_parent(self) -> None:
        if self._pid != os.getpid():
            self._spares, self._bytes, self._pid = [], 0, os.getpid()


class ReadBuffers:
    """Memory that files are read into, used again when no object refers to it."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []  # size, address

    def read(self, fd: int, size: int) -> memoryview:
        """Read a file; the memory stays as it is while the view, or an array on it, is alive."""
        room, address = self._take(size)
        region = (ctypes.c_char * size).from_address(address)
        weakref.finalize(region, self._give_back, room, address)
        view = memoryview(region).cast("B")
        at = 0
        while at < size:
            count = os.preadv(fd, [view[at:]], at)
            if not count:
                break  # somebody has cut it short
            at += count
        return view[:at].toreadonly()

    def _take(self, size: int) -> tuple[int, int]:
        for number, (room, _) in enumerate(self._free):
            if size <= room <= 2 * size:
                return self._free.pop(number)
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return room, _map(room, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1)

    def _give_back(self, room: int, address: int) -> None:
        self._free.append((room, address))
        if len(self._free) > MOST_FREE_BUFFERS:
            room, address = self._free.pop(0)
            _libc().munmap(address, room)


def save_soon(path: str) -> None:
    """Start writing a file to the disk, without waiting for it."""
    with contextlib.suppress(OSError), _opened(path) as fd:
        _libc().sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


def map_file(fd: int, size: int) -> memoryview:
    """Map a file into memory; it stays mapped while the view, or an array on it, is alive.

    Python's own mmap keeps a descriptor for each mapping, so that a thousand large results would
    exhaust them.
    """
    address = _map(size, mmap.PROT_READ, mmap.MAP_SHARED, fd)
    region = (ctypes.c_char * size).from_address(address)
    weakref.finalize(region, _libc().munmap, address, size)
    return memoryview(region).cast("B").toreadonly()


def _map(size: int, protection: int, flags: int, fd: int) -> int:
    address = _libc().mmap(None, size, protection, flags, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(address)


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
