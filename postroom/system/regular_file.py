"""Opening files: for reading, without ever waiting for a writer; for writing, for nobody else."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str) -> BinaryIO:
    """Open a regular file to read it; anything else is an OSError, at once."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENXIO, "it is not a regular file", path)
    return open(fd, "rb")


def private(path: str, flags: int) -> int:
    """Open a file that only its user may read: an `opener` for `open`."""
    return os.open(path, flags, 0o600)
