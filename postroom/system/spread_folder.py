"""Folders that ext4 spreads over the disk, so that a new file is made quickly in each of them.

ext4 makes a file near its folder, and passes over inodes that were deleted in the last minutes, one
by one. Where many files are deleted, as in /tmp, a new one takes up to a millisecond instead of
20 microseconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

_GET_FLAGS, _SET_FLAGS, _TOP_OF_TREE = 0x80086601, 0x40086602, 0x00020000
_FLAGS = struct.Struct("l")


def spread(folder: str) -> None:
    """Have each new folder in this one put into a part of the disk with free inodes (chattr +T).

    Filesystems that do not know this are left alone.
    """
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))
            fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags | _TOP_OF_TREE))
        finally:
            os.close(fd)
