"""What is missing when the operating system refuses something, and what to do about it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from ..errors import BaseFolderError
from .disk_room import NoRoomError

# With less than this, the disk counts as full: no parcel fits.
LEAST_BYTES = 64 << 10

# Somebody may free some space: what cannot be written now waits.
WAITED_FOR = (errno.ENOSPC, errno.EDQUOT)
SHORTAGES = (*WAITED_FOR, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def explain(error: OSError, place: str = "") -> str:
    """Say what went wrong at a place, and what to do."""
    if isinstance(error, NoRoomError):
        return error.sentence
    place = place or os.fsdecode(error.filename or "")
    where = f"the disk of {place}" if place else "a disk"
    match error.errno:
        case errno.ENOSPC:
            return full_disk(place) or f"{where} is full: free some space on it"
        case errno.EDQUOT:
            return f"your quota on {where} is used up: free some space on it"
        case errno.EROFS:
            return f"{where} is read-only: make it writable"
        case errno.EMFILE:
            return "too many files are open in this process: raise the limit (`ulimit -n`)"
        case errno.ENFILE:
            return "too many files are open on this machine: end programs that hold many"
        case errno.ENOMEM:
            return "this machine has no memory left: end programs that need much"
    return error.strerror or str(error)


def cannot(what: str, base: str, error: OSError) -> BaseFolderError:
    """The error of a call that the operating system has refused."""
    return BaseFolderError(f"cannot {what} at {base}: {explain(error, base)}")


@contextlib.contextmanager
def explaining(what: str, base: str) -> Iterator[None]:
    """Turn an OSError (a full disk, too many open files) into a sentence."""
    try:
        yield
    except OSError as error:
        raise cannot(what, base, error) from error


def full_disk(place: str) -> str:
    """Say that a disk is full, and what to do; "": it has some space left."""
    try:
        disk = os.statvfs(place)
    except OSError:
        return ""
    blocks = disk.f_bavail if os.geteuid() else disk.f_bfree
    if blocks * disk.f_frsize < LEAST_BYTES:
        return f"the disk of {place} is full: free some space on it (`df -h {place}`)"
    if disk.f_files and not disk.f_ffree:
        return f"the disk of {place} can hold no more files: remove some (`df -i {place}`)"
    return ""
