"""The filesystem, clock and randomness as the protocol sees them: small enough to be simulated.

`LocalFiles` makes the real system calls; the simulator in the tests implements the same `Files` and
loses, tears, delays and reorders what a real disk may. Everything that passes between processes
goes through here, and nothing that is read is trusted: no symlinks, only regular files of this
user, limited in size.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import stat
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..errors import BadFileError
from ..parcel.container import Buffer
from ..system.disk_room import DiskRoom, NoRoomError, disk_space
from ..system.page_cache import (
    LARGE,
    LockedMaps,
    PageCache,
    Spare,
    Spares,
    allocate,
    claim,
    give_back,
    map_file,
    may_leave,
    next_data,
    save_soon,
)

# Below this size, copying a file into memory is cheaper than mapping it.
MAP_FROM_BYTES = 256 * 1024
# A new large file is written in pieces; one takes long if it is slower than this.
PIECES = (1 << 20, 256 << 10, 64 << 10)
PIECE_S = 0.00005
S_PER_BYTE = 1e-9
# writev takes at most this many buffers in one call (IOV_MAX on Linux).
MOST_BUFFERS = 1024
# A longer file in a mailbox is not a letter.
LETTER_LIMIT = 4096


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Clock(Protocol):
    """Two clocks: `wall` for what is stored, `monotonic` for waiting."""

    def wall(self) -> float: ...
    def monotonic(self) -> float: ...


class Lock(Protocol):
    """A lock that is released when the processes that hold it are dead."""

    def release(self) -> None: ...


class Box(Protocol):
    """One open mailbox."""

    def size(self) -> int:
        """How many bytes it holds; 0: the agent is idle."""

    def read(self) -> bytes:
        """Its content."""

    def write(self, letter: bytes) -> None:
        """Write a letter; a reader may see half of it meanwhile."""

    def append(self, line: bytes) -> None:
        """Add a line behind the letter; a reader may see half of it meanwhile."""

    def patch(self, at: int, word: bytes) -> None:
        """Replace eight bytes of what was written, all or none; without an error on a full disk."""

    def clear(self) -> None:
        """Empty it."""

    def gone(self) -> bool:
        """Whether its owner has removed it."""

    def close(self) -> None:
        """Close it."""


class AppendFile(Protocol):
    """One open append log: it only grows, and existing bytes never change."""

    def size(self) -> int:
        """How long it is now."""

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from `at` on, or fewer if the file ends before."""

    def append(self, chunks: Sequence[Buffer]) -> int:
        """Append all in one write, and return its offset; OSError if it was cut short."""

    def sync(self) -> None:
        """Make its content survive a power loss."""

    def is_at(self, path: str) -> bool:
        """Whether this is still the file at that path."""

    def give_back(self, at: int, end: int) -> None:
        """Nobody needs the bytes from `at` to `end`: give their space back; it keeps its length.

        From now on some or all of them are zeros.
        """

    def next_data(self, at: int) -> int:
        """A place from `at` on, before which there are only zeros."""

    def close(self) -> None:
        """Close it."""


class Files(Protocol):
    """The operations of the protocol on a filesystem."""

    def prepare(self, path: str | None) -> None:
        """Do in advance what `write_new` and `publish` of a path would do while somebody waits.

        The name may exist from now on, as an empty file, until this is called for another path.
        None: there is no other.
        """

    def write_new(
        self,
        path: str,
        chunks: Sequence[Buffer],
        *,
        sync: bool = False,
        spares: tuple[str, str] | None = None,
        reserve: bool = False,
    ) -> None:
        """Write a new file completely; on any error it is removed again.

        A large one may be written over one of the `spares` that others have left: a folder, and how
        their names begin. With `reserve` it leaves room for results.
        """

    def publish(self, temporary: str, final: str) -> bool:
        """Give a finished file its final name, without replacing; False: the name is taken."""

    def names(self, folder: str) -> list[str]:
        """List a folder; an absent one is empty."""

    def read(self, path: str, limit: int) -> bytes:
        """Read a whole small file."""

    def view(self, path: str, limit: int, *, recycled: bool = False) -> Buffer:
        """Read a whole file, memory-mapped when it is large; one that may be `recycled` is not,
        as long as the view is in use.
        """

    def tail(self, path: str, size: int) -> bytes:
        """Read the last bytes of a file."""

    def exists(self, path: str) -> bool:
        """Whether the path exists."""

    def sizes(self, folder: str) -> Iterator[tuple[str, int, float]]:
        """Every file below a folder: its name, the bytes that it takes, and when it changed."""

    def disk_space(self, folder: str) -> tuple[int, int]:
        """The bytes that are free for this user on the disk of a folder, and all of them."""

    def has_room(self, folder: str, nbytes: int) -> bool:
        """Whether that many bytes fit on the disk beside what is kept for results."""

    def make_folder(self, path: str) -> None:
        """Make a private folder if it does not exist."""

    def move(self, source: str, target: str) -> None:
        """Rename to a name that no other process uses."""

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all that is in it, in any order; others may be at it, too."""

    def recycle(self, path: str, temporary: str) -> None:
        """Nobody will read this file again: take its name away, and write the next one over it."""

    def hand_on(self, path: str, spare: str) -> None:
        """Nobody will read this file again: remove it, or let others write over it, as `spare`."""

    def remove_spares(self) -> None:
        """Remove the files that were to be written over."""

    def let_go(self, path: str) -> None:
        """Nobody will read this file soon: its memory may be used for the next large one."""

    def save_soon(self, path: str) -> None:
        """Start writing a file to the disk, without waiting for it."""

    def touch(self, path: str) -> None:
        """Cause an event for processes that watch the parent folder."""

    def sync_file(self, path: str) -> None:
        """Make the content of a file survive a power loss; for its name, sync the folder."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder survive a power loss."""

    def try_lock(self, path: str, *, shared: bool = False) -> Lock | None:
        """Take a lock without waiting; None: another process has it."""

    def create_box(self, path: str) -> Box:
        """Make an empty mailbox."""

    def open_box(self, path: str) -> Box | None:
        """Open a mailbox; None: there is none."""

    def make_append_file(self, path: str) -> AppendFile:
        """Open an append log for writing; make it if it does not exist."""

    def open_append_file(self, path: str) -> AppendFile | None:
        """Open an append log for reading; None: there is none."""


def is_locked(files: Files, path: str) -> bool:
    """Whether somebody holds a lock; to ask does not make its file."""
    if not files.exists(path):
        return False
    lock = files.try_lock(path, shared=True)
    if lock is not None:
        lock.release()
    return lock is None


def replace_file(
    files: Files, temporary: str, path: str, data: Buffer, *, sync: bool = False
) -> None:
    """Write a file in place of another: a reader sees all of the old one, or all of the new.

    With `sync`, it survives a power loss.
    """
    files.write_new(temporary, [data], sync=sync)
    files.move(temporary, path)
    if sync:
        files.sync_folder(os.path.dirname(path))


class SystemClock:
    """The machine's own clocks."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


def new_token(length: int = 6) -> str:
    """Random characters for a unique name."""
    return os.urandom((length + 1) // 2).hex()[:length]


_held: weakref.WeakSet[LocalLock | LocalAppendFile] = weakref.WeakSet()


def _drop_held_in_child() -> None:
    # A child forked by user code (multiprocessing, a data loader) shares our descriptors, and would
    # keep a dead process's lock alive. Closing its copy does not release the parent's lock. And if
    # two processes appended through one descriptor, neither could see where its record went.
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

    def is_at(self, path: str) -> bool:
        """Whether this is still the lock at that path: not after its folder was moved away."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Release it; a second time does nothing."""
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
        self._words: dict[int, memoryview] = {}  # by their place

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """Its descriptor."""
        return self._fd

    def size(self) -> int:
        # A third of the cost of `fstat`; nothing else uses the descriptor's position.
        return os.lseek(self._fd, 0, os.SEEK_END)

    def read(self) -> bytes:
        return os.pread(self._fd, LETTER_LIMIT, 0)

    def write(self, letter: bytes) -> None:
        # Nothing may follow the last byte: by then the reader may have emptied the mailbox.
        offset = 0
        while offset < len(letter):
            offset += os.pwrite(self._fd, letter[offset:], offset)

    def append(self, line: bytes) -> None:
        os.pwrite(self._fd, line, self.size())

    def patch(self, at: int, word: bytes) -> None:
        # One machine instruction into the page cache, which outlives this process. It takes a tenth
        # of the time of a system call.
        place = self._words.get(at)
        if place is None:
            try:  # nobody truncates it, which would be fatal here
                mapped = memoryview(mmap.mmap(self._fd, 0))
                place = self._words[at] = mapped[at : at + len(word)].cast("Q")
            except (OSError, ValueError, TypeError):  # the disk was full, and the file is empty
                return
        place[0] = int.from_bytes(word, sys.byteorder)

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    def gone(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalAppendFile:
    """An append log through an open descriptor."""

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
        # One system call: Linux does not mix it with those of other processes.
        size = sum(map(len, chunks))
        written = os.writev(self._fd, chunks)
        if written != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.lseek(self._fd, 0, os.SEEK_CUR) - size

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def is_at(self, path: str) -> bool:
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (status.st_ino, status.st_dev) == self._inode

    def give_back(self, at: int, end: int) -> None:
        give_back(self._fd, at, end)

    def next_data(self, at: int) -> int:
        return next_data(self._fd, at)

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
        self._spares = Spares()
        self._pieces = PieceWriter()
        self._room = DiskRoom()
        self._locked = LockedMaps()
        self._prepared: str | None = None
        self._prepared_fd = -1  # until it is written
        self._prepared_by = 0  # a fork must not write through the descriptor of its parent

    def __del__(self) -> None:
        if self._prepared is not None and self._prepared_by == os.getpid():
            self.prepare(None)

    def prepare(self, path: str | None) -> None:
        before, self._prepared = self._prepared, None
        # If this fails, writing the file does it, or reports the error.
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

    def write_new(
        self,
        path: str,
        chunks: Sequence[Buffer],
        *,
        sync: bool = False,
        spares: tuple[str, str] | None = None,
        reserve: bool = False,
    ) -> None:
        size = sum(map(len, chunks))
        spare: Spare | None = None
        if size >= MAP_FROM_BYTES:
            spare = claim(*spares, path) if spares is not None else self._spares.take(size, path)
        if reserve:
            spare = self._reserve(path, size, spare)
        mine = path == self._prepared and self._prepared_by == os.getpid()
        if spare is not None:
            fd = spare.fd
            if mine and self._prepared_fd >= 0:  # its name is the spare's now
                os.close(self._prepared_fd)
                self._prepared_fd = -1
        elif mine and self._prepared_fd >= 0:
            fd, self._prepared_fd = self._prepared_fd, -1
        else:
            fd = os.open(path, _NEW, 0o600)
        try:
            try:
                if size >= LARGE and spare is None:
                    # Or it would take all that is left, from everybody, before it is removed.
                    if disk_space(os.path.dirname(path))[0] < size:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    self._pages.make_room(size)
                    allocate(fd, size)
                if size >= MAP_FROM_BYTES and spare is None:
                    self._pieces.write(fd, chunks)
                else:
                    _write_all(fd, chunks)
                if spare is not None:
                    os.ftruncate(fd, size)
                if sync:
                    os.fsync(fd)
            finally:
                spare.close() if spare is not None else os.close(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def _reserve(self, path: str, size: int, spare: Spare | None) -> Spare | None:
        """See that a file fits on the disk, if need be in place of all spares; NoRoomError if not.

        Returns the spare that it may be written over.
        """
        folder = os.path.dirname(path)
        try:
            self._room.take(folder, size if spare is None else max(0, size - spare.size))
        except NoRoomError:
            if spare is not None:
                os.unlink(path)
                spare.close()
            self._spares.remove()
            self._room.take(folder, size)
            return None
        return spare

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

    def view(self, path: str, limit: int, *, recycled: bool = False) -> Buffer:
        fd, size = _open_regular(path, limit)
        try:
            if size < MAP_FROM_BYTES:
                return _read_exactly(fd, size, 0)
            if size >= LARGE:
                self._pages.make_room(size)
            view = self._locked.map(fd, size) if recycled else map_file(fd, size)
            if size >= LARGE:
                self._pages.is_mapped(path, view)
            return view
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

    def sizes(self, folder: str) -> Iterator[tuple[str, int, float]]:
        try:
            entries = os.scandir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from self.sizes(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield entry.name, status.st_blocks * 512, status.st_mtime

    def disk_space(self, folder: str) -> tuple[int, int]:
        return disk_space(folder)

    def has_room(self, folder: str, nbytes: int) -> bool:
        if self._room.has(folder, nbytes):
            return True
        self._spares.remove()
        return self._room.has(folder, nbytes)

    def make_folder(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def move(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        while self.exists(path):
            # Another process may remove the same tree: then this one goes on with what is left.
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.lstat(path).st_mode):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)

    def recycle(self, path: str, temporary: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_size < MAP_FROM_BYTES:
                os.unlink(path)
            else:
                os.rename(path, temporary)
                self._spares.add(temporary)

    def hand_on(self, path: str, spare: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_size >= MAP_FROM_BYTES and may_leave(spare):
                os.rename(path, spare)
            else:
                os.unlink(path)

    def remove_spares(self) -> None:
        self._spares.remove()

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
        mode = os.O_RDONLY if shared else os.O_RDWR  # who only looks may see a read-only disk
        fd = os.open(path, mode | os.O_CREAT | os.O_NOFOLLOW, 0o600)
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
    # O_NONBLOCK: opening a FIFO must not hang.
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
    while len(data) < size:  # a signal or a network filesystem may return less
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _write_all(fd: int, chunks: Sequence[Buffer]) -> None:
    """Write every byte: continue after a short write."""
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


class PieceWriter:
    """Writes new large files, into memory that the machine probably has.

    Linux takes memory for a write in blocks as large as the write. A virtual machine gives free
    blocks of 2 MB and more back to its host, and then gets each page anew, at a tenth of the speed;
    smaller blocks it keeps. So a file is written in pieces. When there are no warm blocks of that
    size left, a piece takes long, and the next ones are smaller.
    """

    def __init__(self) -> None:
        self._size = PIECES[0]

    def write(self, fd: int, chunks: Sequence[Buffer]) -> None:
        views = deque(memoryview(chunk) for chunk in chunks)
        size = self._size
        while views and size:
            view = views.popleft()
            piece = view[:size]
            if len(view) > size:
                views.appendleft(view[size:])
            began = time.perf_counter()
            _write_all(fd, [piece])
            if time.perf_counter() - began > PIECE_S + len(piece) * S_PER_BYTE:
                # Or a kernel that computes keeps the interpreter: each piece waits for that.
                size = next((smaller for smaller in PIECES if smaller < size), 0)
        if views:
            _write_all(fd, list(views))
        self._size = size or PIECES[0]


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False
