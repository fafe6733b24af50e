"""The filesystem, clock and randomness as the protocol sees them: small enough to be simulated.

`LocalFiles` is the real thing and nothing but the system calls; the simulator in the tests
implements the same `Files` and loses, tears, delays and reorders what a real disk may. Everything
that passes between processes goes through here, so nothing that is read is trusted: never through a
symlink, only regular files of this user, bounded in size.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
import weakref
from collections.abc import Sequence
from typing import Protocol

from ..errors import BadFileError
from ..parcel.container import Buffer
from ..system.page_cache import LARGE, PageCache, allocate, map_file, save_soon

# Below this a copy into memory is cheaper than setting up a mapping.
MAP_FROM_BYTES = 256 * 1024
# writev takes at most this many buffers in one call (IOV_MAX on Linux).
MOST_BUFFERS = 1024
# What the mailbox will read of a letter: a longer one is no letter.
LETTER_LIMIT = 4096


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Clock(Protocol):
    """Two times: `wall` is for records, `monotonic` for waiting."""

    def wall(self) -> float: ...
    def monotonic(self) -> float: ...


class Lock(Protocol):
    """A lock that the kernel releases when its holders are gone."""

    def release(self) -> None: ...


class Box(Protocol):
    """One open mailbox."""

    def size(self) -> int:
        """How many bytes lie in it: 0 is idle."""

    def read(self) -> bytes:
        """What lies in it."""

    def write(self, letter: bytes) -> None:
        """Put a letter in; a reader may see half of it meanwhile."""

    def append(self, line: bytes) -> None:
        """Put a line behind the letter; a reader may see half of it meanwhile."""

    def clear(self) -> None:
        """Empty it."""

    def gone(self) -> bool:
        """Whether its owner has taken it down."""

    def close(self) -> None:
        """Let go of it."""


class AppendFile(Protocol):
    """One open roll: it only grows, and what is in it never changes."""

    def size(self) -> int:
        """How long it is now."""

    def read(self, at: int, size: int) -> bytes:
        """So many bytes from there on, fewer if it ends before."""

    def append(self, chunks: Sequence[Buffer]) -> int:
        """Put all behind the end in one piece, and return where that was; cut short: OSError."""

    def sync(self) -> None:
        """Make all that is in it survive a power loss."""

    def lies_at(self, path: str) -> bool:
        """Whether this is still the roll that others find there."""

    def close(self) -> None:
        """Let go of it."""


class Files(Protocol):
    """The operations of the protocol on a filesystem."""

    def prepare(self, path: str | None) -> None:
        """Do ahead what `write_new` and `publish` of a path need not do while somebody waits.

        Its name may be there from now on, with nothing in it, and may stay until this is called for
        another. None: there is no other.
        """

    def write_new(self, path: str, chunks: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write a file that does not exist yet, whole; on any error it is removed again."""

    def publish(self, temporary: str, final: str) -> bool:
        """Give a finished file its final name, never replacing; False: the name is taken."""

    def names(self, folder: str) -> list[str]:
        """List a folder; an absent one is empty."""

    def read(self, path: str, limit: int) -> bytes:
        """Read a whole small file."""

    def view(self, path: str, limit: int) -> Buffer:
        """Read a whole file, memory-mapped when it is large."""

    def tail(self, path: str, size: int) -> bytes:
        """Read the last bytes of a file."""

    def exists(self, path: str) -> bool:
        """Whether the name is there."""

    def make_folder(self, path: str) -> None:
        """Make a private folder; an existing one will do."""

    def move(self, source: str, target: str) -> None:
        """Rename to a name that can only be ours."""

    def remove(self, path: str) -> None:
        """Remove a file; an absent one will do."""

    def let_go(self, path: str) -> None:
        """Say that nobody is going to read a file soon: the next large one may have its memory."""

    def save_soon(self, path: str) -> None:
        """Have a file brought to the disk, and do not wait for it."""

    def touch(self, path: str) -> None:
        """Ring: let those who watch the parent folder look again."""

    def sync_file(self, path: str) -> None:
        """Make a file survive a power loss; its name is the folder's matter."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder survive a power loss."""

    def try_lock(self, path: str, *, shared: bool = False) -> Lock | None:
        """Take a lock without waiting; None: somebody else has it."""

    def create_box(self, path: str) -> Box:
        """Put up an empty mailbox."""

    def open_box(self, path: str) -> Box | None:
        """Open somebody's mailbox; None: there is none."""

    def make_append_file(self, path: str) -> AppendFile:
        """Open a roll to append to it; an absent one is made."""

    def open_append_file(self, path: str) -> AppendFile | None:
        """Open a roll to read it; None: there is none."""


class SystemClock:
    """The machine's own clocks."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


def new_token(length: int = 6) -> str:
    """Random letters for a name that must be ours alone."""
    return os.urandom((length + 1) // 2).hex()[:length]


_held: weakref.WeakSet[LocalLock | LocalAppendFile] = weakref.WeakSet()


def _drop_held_in_child() -> None:
    # A child forked by user code (multiprocessing, a data loader) shares our descriptors, and would
    # keep a dead process's lock alive. Closing its copy does not release the parent's lock. A roll
    # that two write to through one descriptor would tell neither where its record went.
    for held in list(_held):
        held._close()


os.register_at_fork(after_in_child=_drop_held_in_child)


class LocalLock:
    """flock(2) on a file that is never removed; it ends with this object at the latest."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _held.add(self)

    def __del__(self) -> None:
        self._close()

    def release(self) -> None:
        """Let go; a second time does nothing."""
        if self.fd >= 0:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class LocalBox:
    """A mailbox through a kept descriptor: a write costs a twentieth of a new file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __del__(self) -> None:
        self.close()

    def size(self) -> int:
        # A third of what `fstat` takes: nobody uses the descriptor's place.
        return os.lseek(self._fd, 0, os.SEEK_END)

    def read(self) -> bytes:
        return os.pread(self._fd, LETTER_LIMIT, 0)

    def write(self, letter: bytes) -> None:
        # Nothing may follow the last byte: by then the reader may have emptied the box.
        offset = 0
        while offset < len(letter):
            offset += os.pwrite(self._fd, letter[offset:], offset)

    def append(self, line: bytes) -> None:
        os.pwrite(self._fd, line, self.size())

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    def gone(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalAppendFile:
    """A roll through an open descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        status = os.fstat(fd)
        self._inode = status.st_ino, status.st_dev
        _held.add(self)

    def __del__(self) -> None:
        self._close()

    def size(self) -> int:
        return os.lseek(self._fd, 0, os.SEEK_END)

    def read(self, at: int, size: int) -> bytes:
        return _read_exactly(self._fd, size, at)

    def append(self, chunks: Sequence[Buffer]) -> int:
        # One call, which the kernel does not mix with anybody else's.
        size = sum(map(len, chunks))
        written = os.writev(self._fd, chunks)
        if written != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.lseek(self._fd, 0, os.SEEK_CUR) - size

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def lies_at(self, path: str) -> bool:
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (status.st_ino, status.st_dev) == self._inode

    def close(self) -> None:
        _held.discard(self)
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalFiles:
    """The real filesystem."""

    def __init__(self) -> None:
        self._pages = PageCache()
        self._prepared: str | None = None
        self._prepared_fd = -1  # until it is written
        self._prepared_by = 0  # a fork must not write through the descriptor of its parent

    def __del__(self) -> None:
        if self._prepared is not None and self._prepared_by == os.getpid():
            self.prepare(None)

    def prepare(self, path: str | None) -> None:
        before, self._prepared = self._prepared, None
        # Whatever fails here is done, or told, when the file is written.
        with contextlib.suppress(OSError):
            if self._prepared_fd >= 0:
                os.close(self._prepared_fd)
                self._prepared_fd = -1
            if before is not None:
                os.unlink(before)
        with contextlib.suppress(OSError):
            if path is not None:
                self._prepared_fd = os.open(path, _NEW, 0o600)
                self._prepared, self._prepared_by = path, os.getpid()

    def write_new(self, path: str, chunks: Sequence[Buffer], *, sync: bool = False) -> None:
        size = sum(map(len, chunks))
        if path == self._prepared and self._prepared_fd >= 0 and self._prepared_by == os.getpid():
            fd, self._prepared_fd = self._prepared_fd, -1
        else:
            fd = os.open(path, _NEW, 0o600)
        try:
            try:
                if size >= LARGE:
                    self._pages.make_room(size)
                    allocate(fd, size)
                _write_all(fd, chunks)
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def publish(self, temporary: str, final: str) -> bool:
        try:
            os.link(temporary, final)
            won = True
        except OSError as error:
            # On a network filesystem a link may have worked although it says it failed.
            won = _same_file(temporary, final)
            if not won and error.errno != errno.EEXIST:
                self.remove(temporary)
                raise
        if temporary != self._prepared:
            self.remove(temporary)
        return won

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str, limit: int) -> bytes:
        fd, size = _open_regular(path, limit)
        try:
            return _read_exactly(fd, size, 0)
        finally:
            os.close(fd)

    def view(self, path: str, limit: int) -> Buffer:
        fd, size = _open_regular(path, limit)
        try:
            if size < MAP_FROM_BYTES:
                return _read_exactly(fd, size, 0)
            if size >= LARGE:
                self._pages.make_room(size)
            return map_file(fd, size)
        finally:
            os.close(fd)

    def tail(self, path: str, size: int) -> bytes:
        fd, whole = _open_regular(path, None)
        try:
            size = min(size, whole)
            return _read_exactly(fd, size, whole - size)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_folder(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def move(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def let_go(self, path: str) -> None:
        self._pages.let_go(path)

    def save_soon(self, path: str) -> None:
        save_soon(path)

    def touch(self, path: str) -> None:
        os.utime(path)

    def sync_file(self, path: str) -> None:
        _sync(path, os.O_NOFOLLOW)

    def sync_folder(self, path: str) -> None:
        _sync(path, os.O_DIRECTORY)

    def try_lock(self, path: str, *, shared: bool = False) -> LocalLock | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return LocalLock(fd)

    def create_box(self, path: str) -> LocalBox:
        return LocalBox(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))

    def open_box(self, path: str) -> LocalBox | None:
        try:
            fd, _ = _open_regular(path, None, os.O_RDWR)
        except FileNotFoundError:
            return None
        return LocalBox(fd)

    def make_append_file(self, path: str) -> LocalAppendFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        return LocalAppendFile(_open_regular(path, None, flags)[0])

    def open_append_file(self, path: str) -> LocalAppendFile | None:
        try:
            return LocalAppendFile(_open_regular(path, None)[0])
        except FileNotFoundError:
            return None


def _open_regular(path: str, limit: int | None, mode: int = os.O_RDONLY) -> tuple[int, int]:
    # O_NONBLOCK: opening a FIFO that somebody planted must not hang.
    try:
        fd = os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadFileError(path, "is a symbolic link") from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise BadFileError(path, "is not a regular file") from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadFileError(path, "is not a regular file")
        if status.st_uid != os.geteuid():
            raise BadFileError(path, f"belongs to user {status.st_uid}, not to this one")
        if limit is not None and status.st_size > limit:
            raise BadFileError(path, f"is {status.st_size} bytes long; at most {limit} are read")
    except BaseException:
        os.close(fd)
        raise
    return fd, status.st_size


def _sync(path: str, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_exactly(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset)
    while len(data) < size:  # a signal or a network filesystem may hand out less at once
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _write_all(fd: int, chunks: Sequence[Buffer]) -> None:
    """Write every byte: a short write is taken up where it stopped."""
    written = os.writev(fd, chunks[:MOST_BUFFERS])
    if written == sum(map(len, chunks)):
        return
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    start = 0
    while True:
        while start < len(views) and written >= len(views[start]):
            written -= len(views[start])
            start += 1
        if start == len(views):
            return
        views[start] = views[start][written:]
        written = os.writev(fd, views[start : start + MOST_BUFFERS])


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False
