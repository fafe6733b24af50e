"""The memory of large files: mapped by readers, and reused from one file to the next.

A file that was written stays in memory, and a new file needs new memory. A virtual machine may get
that from its host page by page, at a tenth of the speed of a copy. There are two ways around it:

- `Spares`: a file that nobody needs any more loses its name, and the next file is written over it,
  into the same pages and blocks. A process that maps a file which may become a spare holds a shared
  lock on it while any object uses the mapping. A spare is written over only under the exclusive
  lock, so never while it is mapped, and no array ever changes under its user.
- `PageCache`: of files that stay, a process remembers those that nobody needs in memory, and
  releases their memory just before it writes the next large one. This is advice to Linux and
  changes no byte: what is not on the disk yet, or is mapped, stays in memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import ctypes  # late: `postroom submit` handles no large file, and runs in shell loops

# Smaller files are not worth it.
LARGE = 4 << 20
# The most bytes of spare files that a process keeps.
MOST_SPARE_BYTES = 512 << 20
# How many are tried: the others are probably mapped, too, by a kernel that keeps what it gets.
MOST_TRIED = 8
# The most files that are left for other processes to write over,
MOST_LEFT = 8
# and the most mappings with a descriptor.
MOST_MAPPED = 64
# The most idle files that are remembered.
MOST_FILES = 16

_SYNC_FILE_RANGE_WRITE = 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


class PageCache:
    """The large files of one process whose memory may be released."""

    def __init__(self) -> None:
        self._idle: deque[str] = deque(maxlen=MOST_FILES)
        self._mapped: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def is_mapped(self, path: str, view: memoryview) -> None:
        """Note that this process has a file mapped, for as long as something uses the view."""
        self._mapped[path] = view.obj

    def let_go(self, path: str) -> None:
        """Remember that nobody is going to read a file soon."""
        self._idle.append(path)

    def make_room(self, size: int) -> None:
        """Release up to `size` bytes of files that were let go, for a new large file."""
        freed = 0
        while self._idle and freed < size:
            path = self._idle.popleft()
            if path not in self._mapped:  # Linux would look at each page, and keep it
                with contextlib.suppress(OSError):
                    freed += _drop(path)


class Spares:
    """Files without a use, to write the next ones over. A fork does not inherit them."""

    def __init__(self) -> None:
        self._paths: dict[int, deque[str]] = {}  # by size, the oldest first
        self._bytes = 0
        self._pid = os.getpid()
        self._guard = threading.Lock()  # one thread writes files while another gives some back

    def add(self, path: str) -> None:
        """Keep a file, whose name nobody else knows; if there are too many, the oldest goes.

        Somebody may still have it mapped: a worker lets go of an argument after its result is seen.
        """
        size = os.lstat(path).st_size
        with self._guard:
            self._forget_those_of_parent()
            self._put(size, path)
            gone = []
            while self._bytes > MOST_SPARE_BYTES:
                gone.append(self._next(next(iter(self._paths))))
        for one in gone:
            os.unlink(one)

    def take(self, size: int, path: str) -> Spare | None:
        """A file to write `size` bytes over, under a new name; None: there is none.

        It is the oldest of those that are nearest in size and that nobody has mapped.
        """
        mapped: list[tuple[int, str]] = []
        spare = None
        with self._guard:
            self._forget_those_of_parent()
            while self._paths and spare is None and len(mapped) < MOST_TRIED:
                nearest = min(self._paths, key=lambda other: abs(other - size))
                found = self._next(nearest)
                spare = _take_over(found)
                if spare is None:
                    mapped.append((nearest, found))
            for passed_over in mapped:
                self._put(*passed_over)
        if spare is None:
            return None
        try:
            os.rename(spare.path, path)
        except OSError:  # somebody has cleaned up: write a new one
            spare.close()
            return None
        return spare

    def remove(self) -> None:
        """Remove them all."""
        with self._guard:
            self._forget_those_of_parent()
            paths, self._paths, self._bytes = self._paths, {}, 0
        for some in paths.values():
            for path in some:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    __del__ = remove

    def _put(self, size: int, path: str) -> None:
        self._paths.setdefault(size, deque()).append(path)
        self._bytes += size

    def _next(self, size: int) -> str:
        """Take the oldest of a size out."""
        paths = self._paths[size]
        path = paths.popleft()
        if not paths:
            del self._paths[size]
        self._bytes -= size
        return path

    def _forget_those_of_parent(self) -> None:
        if self._pid != os.getpid():
            self._paths, self._bytes, self._pid = {}, 0, os.getpid()


class Spare(NamedTuple):
    """A file that this process alone may write over: it holds the exclusive lock."""

    size: int
    path: str
    fd: int

    def close(self) -> None:
        """Let others read it."""
        # A child may have inherited the descriptor: closing ours would not release the lock.
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)


def may_leave(spare: str) -> bool:
    """Whether a file may be left for others to write over, under this name."""
    folder, name = os.path.split(spare)
    kind = name.split(".", 1)[0]
    return sum(other.startswith(kind) for other in os.listdir(folder)) < MOST_LEFT


def claim(folder: str, prefix: str, path: str) -> Spare | None:
    """Take a file that another process has left, under a new name; None: there is none.

    The first to rename it has it. One that somebody still has mapped is left for later.
    """
    claimed = f"{path}.claimed"
    for name in os.listdir(folder):
        if name.startswith(prefix):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{folder}/{name}", claimed)
                spare = _take_over(claimed)
                if spare is None:
                    os.rename(claimed, f"{folder}/{name}")
                    continue
                try:
                    os.rename(claimed, path)
                except OSError:
                    spare.close()
                    raise
                return spare._replace(path=path)
    return None


def _take_over(path: str) -> Spare | None:
    """Lock a file in order to write over it; None: somebody has it mapped, or it cannot be done."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Spare(os.fstat(fd).st_size, path, fd)
    except OSError:
        os.close(fd)
        return None


class LockedMaps:
    """Maps files that may become spares, and keeps them from being written over meanwhile."""

    def __init__(self) -> None:
        self._mapped = 0

    def map(self, fd: int, size: int) -> memoryview:
        """Map a file; FileNotFoundError if it is being written over: its name is gone.

        Each mapping keeps a descriptor. Where there are many, because a kernel keeps what it gets,
        the file is read into memory instead.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
        if self._mapped >= MOST_MAPPED:
            return _copy(fd, size)
        kept = os.dup(fd)
        try:
            region, address = _region(fd, size)
        except BaseException:
            os.close(kept)
            raise
        self._mapped += 1
        weakref.finalize(region, self._unmap, address, size, kept)
        return memoryview(region).cast("B").toreadonly()

    def _unmap(self, address: int, size: int, fd: int) -> None:
        self._mapped -= 1
        _libc().munmap(address, size)
        os.close(fd)


def _copy(fd: int, size: int) -> memoryview:
    """Read a file into memory that begins at a page: elsewhere, a copy takes four times as long."""
    memory = memoryview(mmap.mmap(-1, size))
    at = 0
    while at < size and (count := os.preadv(fd, [memory[at:]], at)):
        at += count
    return memory[:at].toreadonly()


def save_soon(path: str) -> None:
    """Start writing a file to the disk, without waiting for it."""
    with contextlib.suppress(OSError), _opened(path) as fd:
        _libc().sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


def map_file(fd: int, size: int) -> memoryview:
    """Map a file into memory; it stays mapped while the view, or an array on it, is alive.

    Python's own mmap keeps a descriptor for each mapping, so that a thousand large results would
    exhaust them.
    """
    region, address = _region(fd, size)
    weakref.finalize(region, _libc().munmap, address, size)
    return memoryview(region).cast("B").toreadonly()


def _region(fd: int, size: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Map a file for reading; return the mapping and its address."""
    import ctypes

    address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return (ctypes.c_char * size).from_address(address), int(address)


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


def give_back(fd: int, at: int, end: int) -> None:
    """Give the space of a file's bytes from `at` to `end` back to the disk; it keeps its length.

    Only whole pages: the rest of the bytes stay. Where the filesystem cannot do that, nothing
    happens.
    """
    first, stop = -(-at // mmap.PAGESIZE), end // mmap.PAGESIZE
    if first < stop:
        place, size = first * mmap.PAGESIZE, (stop - first) * mmap.PAGESIZE
        _libc().fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, place, size)


def next_data(fd: int, at: int) -> int:
    """The first byte from `at` on whose space was not given back; `at`, if nobody can say."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        return os.lseek(fd, 0, os.SEEK_END) if error.errno == errno.ENXIO else at


@cache
def _libc() -> ctypes.CDLL:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    offset = ctypes.c_int64
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, offset]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, offset, offset]
    libc.sync_file_range.argtypes = [ctypes.c_int, offset, offset, ctypes.c_uint]
    return libc
