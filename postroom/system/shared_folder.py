"""A folder shared by users who do not trust each other: its checks, its mutex, its files.

Each user writes only into the user's own folder, and reads the folders of all users. A file is
opened without following links, and must be a regular file of the owner of its folder. Readers limit
how much they read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ..errors import GpuError
from . import processes
from .absence import means_absent
from .filesystem import NETWORK, filesystem_of

PREFIX = "postroom-"
RECORD_LIMIT = 64 * 1024
READABLE = 0o755
MUTEX_PATIENCE_S = 30.0

# O_NONBLOCK: a FIFO that another user put there must not hang us.
OPEN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_ADVICE = "set POSTROOM_LEDGER to the folder that the users of this machine share"


class UserFile(NamedTuple):
    """A file in a user's folder, which is open while the files are listed."""

    user: str  # the name of the folder
    name: str
    uid: int
    folder_fd: int

    def open(self) -> int | None:
        """Open it for reading; None if it is not a regular file of that user."""
        return open_file(self.name, self.folder_fd, self.uid)


class SharedFolder:
    """The ledger's folder: shared (root's, with the sticky bit), or private to this user."""

    def __init__(self, where: str) -> None:
        self.path = os.path.abspath(os.path.expanduser(where))
        self._mine: str | None = None
        self._check()

    def _check(self) -> None:
        """Refuse a folder in which others could remove our leases."""
        try:
            os.makedirs(self.path, 0o700, exist_ok=True)
        except FileExistsError:
            raise GpuError(f"the ledger {self.path} is not a folder; {_ADVICE}") from None
        except OSError as error:
            raise GpuError(
                f"the ledger's folder {self.path} cannot be made: {error.strerror}; {_ADVICE}"
            ) from None
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise GpuError(
                f"the ledger {self.path} cannot be used: {error.strerror}; {_ADVICE}"
            ) from None
        if found.st_uid not in (0, os.geteuid()) and not _unmapped(found.st_uid):
            owner = processes.user_name(found.st_uid)
            raise GpuError(
                f"the ledger {self.path} belongs to user {owner}, who could remove your leases; "
                "a shared ledger is root's: install -d -m 1777 -o root FOLDER"
            )
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise GpuError(
                f"anybody could remove your leases from the ledger {self.path}; "
                f"it needs the sticky bit: chmod +t {self.path}"
            )

    @contextmanager
    def mutex(self) -> Iterator[None]:
        """Hold the folder's lock, for a few milliseconds."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._lock(fd)
            try:
                yield
            finally:
                # Not just close: a child that another thread forked meanwhile would keep the lock.
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        # Poll instead of blocking, to report a process that never releases the lock.
        deadline = time.monotonic() + MUTEX_PATIENCE_S
        pause_s = 0.0005
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            except OSError as error:
                raise GpuError(
                    f"the ledger {self.path} cannot be locked ({error.strerror}): "
                    "it must be on a filesystem of this machine"
                ) from None
            else:
                return
            if time.monotonic() > deadline:
                who = lock_holders().get(lock_key(fd)) or "a process that cannot be seen from here"
                raise GpuError(f"the ledger {self.path} is kept locked by {who}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.01)

    def users(self) -> list[str]:
        """List the users' folders, by name."""
        try:
            return sorted(name for name in os.listdir(self.path) if name.startswith(PREFIX))
        except OSError as error:
            raise GpuError(
                f"the ledger {self.path} cannot be read: {error.strerror}; {_ADVICE}"
            ) from None

    def files(self, *prefixes: str) -> Iterator[UserFile]:
        """Yield all users' files whose names begin with one of the prefixes."""
        for user in self.users():
            try:
                fd = os.open(os.path.join(self.path, user), OPEN_FOLDER)
            except OSError as error:
                if means_absent(error):
                    continue  # not a folder
                raise GpuError(
                    f"{os.path.join(self.path, user)} cannot be opened ({error.strerror}), so "
                    "nobody can tell which GPUs are held; see `ulimit -n`"
                ) from None
            try:
                uid = os.fstat(fd).st_uid
                for name in os.listdir(fd):
                    if name.startswith(prefixes):
                        yield UserFile(user, name, uid, fd)
            finally:
                os.close(fd)

    def mine(self) -> str:
        """Return the path of this user's folder; make it if it is missing."""
        if self._mine is not None and os.path.isdir(self._mine):
            return self._mine
        uid = os.geteuid()
        path = os.path.join(self.path, f"{PREFIX}{uid}")
        while not _own(path, uid):
            # Another user has taken the name. Use any other: readers go by the owner.
            path = os.path.join(self.path, f"{PREFIX}{uid}-{os.urandom(4).hex()}")
        self._mine = path
        kind = filesystem_of(self.path)
        if kind in NETWORK or kind == "9p":  # a folder of the host of a virtual machine
            raise GpuError(
                f"the ledger {self.path} is on {kind}: locks across machines are not reliable, "
                "so it must be on a filesystem of this machine"
            )
        return path


def open_file(name: str, folder_fd: int, uid: int | None = None) -> int | None:
    """Open a file for reading; None if it is not a regular file (of that user)."""
    try:
        fd = os.open(name, os.O_RDONLY | OPEN_FILE, dir_fd=folder_fd)
    except OSError as error:
        if means_absent(error):
            return None
        whose = "" if uid is None else f" of user {processes.user_name(uid)}"
        raise GpuError(
            f"the file {name}{whose} in the ledger cannot be opened ({error.strerror}), so nobody "
            "can tell which GPUs are held; see `ulimit -n`"
        ) from None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and uid in (None, found.st_uid):
        return fd
    os.close(fd)
    return None


def lock_is_free(fd: int) -> bool:
    """Whether nobody has the lock of an open file; the lock stays as it was."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


class LockHolder(NamedTuple):
    """A process that has a file lock."""

    pid: int
    uid: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command}) of user {processes.user_name(self.uid)}"


def lock_holders() -> dict[str, LockHolder]:
    """Return the visible processes that have a flock, by `lock_key`."""
    found: dict[str, LockHolder] = {}
    with suppress(OSError), open("/proc/locks") as file:
        for line in file:
            fields = line.split()
            # "5: FLOCK ADVISORY WRITE 812 fd:00:2342 0 EOF"; a waiting lock has an arrow more.
            if len(fields) >= 6 and fields[1] == "FLOCK":
                with suppress(OSError):
                    pid = int(fields[4])
                    uid = os.stat(f"/proc/{pid}").st_uid
                    seen = processes.stat(pid)
                    found[fields[5]] = LockHolder(pid, uid, seen.command if seen else "?")
    return found


def lock_key(fd: int) -> str:
    """Return the name of an open file in /proc/locks."""
    found = os.fstat(fd)
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"


def _own(path: str, uid: int) -> bool:
    """Make a folder that only this user can write to; False if the name is another user's."""
    try:
        os.mkdir(path, READABLE)
        os.chmod(path, READABLE)  # whatever the umask, others must see our leases
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise GpuError(
                f"the ledger {os.path.dirname(path)} is not writable for "
                f"user {processes.user_name(uid)}; {_ADVICE}"
            ) from None
        raise
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        return False
    if found.st_mode & 0o022:
        os.chmod(path, READABLE)
    return True


def _unmapped(uid: int) -> bool:
    """Whether an owner is outside our user namespace, as root is in a container."""
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            overflow = int(file.read())
        with open("/proc/self/uid_map") as file:
            whole = file.read().split()[:3] == ["0", "0", "4294967295"]
    except (OSError, ValueError):
        return False
    return uid == overflow and not whole
