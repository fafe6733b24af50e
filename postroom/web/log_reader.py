"""Reads logs of jobs for the page: only files inside the base, and no symbolic links."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ..text.safe_text import complete_length, final_text, strip_escapes

FIRST_BYTES = 64 << 10
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class LogChunk:
    """A part of a log, and the mark from which to read on."""

    text: str
    mark: str  # the file's inode, and how far it was read
    fresh: bool  # True: this replaces what was shown before
    skipped: int = 0  # bytes of the file before this chunk, when it is fresh
    size: int = 0


NOTHING = LogChunk("", "", fresh=True)


def last_of(printed: str) -> LogChunk:
    """The end of what a Python task has printed."""
    return LogChunk(final_text(printed[-FIRST_BYTES:]), "", fresh=True, size=len(printed))


def open_log(root: str, path: str) -> BinaryIO | None:
    """Open a log of this user; None: not possible."""
    fd = _open_below(root, path)
    if fd is None:
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return os.fdopen(fd, "rb", buffering=0)
    os.close(fd)
    return None


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """All of a log, up to the size that it has now; closes it."""
    with file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (data := file.read(min(MOST_BYTES, left))):
            left -= len(data)
            yield data


def read_log(root: str, path: str, mark: str = "", *, most: int = FIRST_BYTES) -> LogChunk:
    """What was added to a log after a mark; without a valid mark, the end of the log."""
    file = open_log(root, path)
    if file is None:
        return NOTHING
    with file:
        status = os.fstat(file.fileno())
        size = status.st_size
        inode, _, read = mark.partition("-")
        known = inode == str(status.st_ino) and read.isascii() and read.isdigit()
        # A new attempt has a new file. A long log is truncated, so it may have become shorter.
        fresh = not known or not 0 <= size - int(read) <= MOST_BYTES
        start = max(0, size - most) if fresh else int(read)
        data = os.pread(file.fileno(), min(size - start, MOST_BYTES), start)
    if fresh and start:
        cut = data.find(b"\n") + 1
        if 0 < cut < len(data):
            start, data = start + cut, data[cut:]
    data = data[: complete_length(data)]
    text = data.decode(errors="replace")
    return LogChunk(
        final_text(text) if fresh else strip_escapes(text),
        f"{status.st_ino}-{start + len(data)}",
        fresh=fresh,
        skipped=start if fresh else 0,
        size=size,
    )


def _open_below(root: str, path: str) -> int | None:
    """Open a file, refusing a symbolic link at any step below the root; None: not possible."""
    if not path.startswith(f"{root}/"):
        return None
    steps = path.removeprefix(f"{root}/").split("/")
    if any(step in ("", ".", "..") for step in steps):
        return None
    here = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        try:
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            for step in steps[:-1]:
                fd = os.open(step, here | os.O_DIRECTORY, dir_fd=fd)
                opened.callback(os.close, fd)
            # O_NONBLOCK: a FIFO must not block the page.
            return os.open(steps[-1], here | os.O_NONBLOCK, dir_fd=fd)
        except OSError:
            return None
