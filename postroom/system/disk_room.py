"""Room on a disk: submitted jobs may not take the space that is kept for their results.

A submitter leaves a reserve, so that results always find room: a job that was accepted can end. The
disk is asked again after a number of bytes was written, not for each job.
"""

from __future__ import annotations

import errno
import os

from ..text.sizes import format_bytes

# Kept for results: this many bytes, or this share of a small disk.
RESERVE_BYTES = 256 << 20
RESERVE_SHARE = 0.02
# After this many bytes the disk is asked again, however much was free.
LOOK_BYTES = 64 << 20


def disk_space(folder: str) -> tuple[int, int]:
    """The bytes that are free for this user on the disk of a folder, and all of them."""
    disk = os.statvfs(folder)
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    return free * disk.f_frsize, disk.f_blocks * disk.f_frsize


def reserve_of(total: int) -> int:
    """How much of a disk is kept for results."""
    return min(RESERVE_BYTES, int(total * RESERVE_SHARE))


class NoRoomError(OSError):
    """What is to be written does not fit beside what is kept for results."""

    def __init__(self, place: str, nbytes: int, free: int, reserve: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC), place)
        self.sentence = (
            f"the next jobs need {format_bytes(nbytes)}, and {format_bytes(free)} are free on the "
            f"disk of {place}, of which {format_bytes(reserve)} are kept for results: free some "
            "space; see `postroom retention`, and `postroom clean`, which removes finished runs"
        )


class DiskRoom:
    """Remembers how much may be written before the disk is asked again."""

    def __init__(self) -> None:
        self._left = 0

    def has(self, folder: str, nbytes: int) -> bool:
        """Whether that many bytes fit beside the reserve."""
        if nbytes <= self._left:
            return True
        free, total = disk_space(folder)
        room = free - reserve_of(total)
        # Others write, too: half of it, and not too much.
        self._left = max(0, min(room // 2, LOOK_BYTES))
        return nbytes <= room

    def take(self, folder: str, nbytes: int) -> None:
        """Count bytes that are about to be written; raises NoRoomError if they do not fit."""
        if not self.has(folder, nbytes):
            free, total = disk_space(folder)
            raise NoRoomError(folder, nbytes, free, reserve_of(total))
        self._left -= min(nbytes, self._left)
