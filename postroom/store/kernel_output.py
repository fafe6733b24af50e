"""What kernels print: one file for each run and agent, in which every line names its job.

    runs/<run>/output.<agent>        17 1 o epoch 3, loss 0.25
                                     job, attempt, stream (o or e), text; O or E: the line goes on

A job that prints nothing costs nothing. Each line is on its way to the disk when the kernel has
printed it, so it survives the death of the worker. Once a file is full it becomes `<name>.old`, in
place of the one before it: the newest output stays.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import BinaryIO

from ..system.regular_file import open_regular
from .base import Base

# Of each run and agent, between this many bytes and twice as many are kept.
KEEP_BYTES = 8 << 20

_LINE = re.compile(rb"(\d+) (\d+) ([oeOE]) ([^\n]*\n?)")


def add_output(
    base: Base, agent_id: str, job: tuple[str, int, int], stream: str, data: bytes
) -> None:
    """Append what a job (run, number, attempt) has printed; what cannot be written is dropped."""
    run, number, attempt = job
    whole = b"%d %d %s " % (number, attempt, stream.encode())
    *lines, rest = data.split(b"\n")
    text = b"".join([b"%s%s\n" % (whole, line) for line in lines])
    if rest:
        text += b"%s%s\n" % (whole.upper(), rest)
    keep_output(base, agent_id, run, text)


def keep_output(base: Base, agent_id: str, run: str, lines: bytes) -> None:
    """Append lines that name their jobs; what cannot be written is dropped."""
    path = base.kernel_output(run, agent_id)
    # A kernel's `print` must not fail because our disk is full.
    with contextlib.suppress(OSError):
        fd = _open(base, run, path)
        try:
            os.write(fd, lines)
            full = os.lseek(fd, 0, os.SEEK_CUR) > KEEP_BYTES
        finally:
            os.close(fd)
        if full:
            os.replace(path, f"{path}.old")


def _open(base: Base, run: str, path: str) -> int:
    # Opened for each line: a kernel may close any descriptor, and open a file of its own with it.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.mkdir(base.job_folders(run), 0o700)
        return os.open(path, flags, 0o600)


class OutputReader:
    """Reads what one job has printed, and later what it has printed since."""

    def __init__(self, base: Base, run: str, job: int, *, err: bool = False) -> None:
        self._base = base
        self._run = run
        self._job = job
        self._err = err  # only stderr
        self._read: dict[str, tuple[int, int]] = {}  # by path: the file's inode, and how far

    def read(self, attempt: int | None = None) -> Iterator[bytes]:
        """What was printed since the last call, of one attempt or (None) of all."""
        for file in _unread(self._base, self._run, self._read):
            for line in _whole_lines(file):
                yield from self._text(line, attempt)

    def _text(self, line: bytes, attempt: int | None) -> Iterator[bytes]:
        said = _LINE.fullmatch(line)
        if said is None or int(said[1]) != self._job:
            return
        if attempt not in (None, int(said[2])) or (self._err and said[3] in b"oO"):
            return
        yield said[4] if said[3].islower() else said[4][:-1]


class OutputFollower:
    """Reads what all jobs of a run print, as it comes."""

    def __init__(self, base: Base, run: str) -> None:
        self._folder = base.job_folders(run)
        self._base = base
        self._run = run
        self._read: dict[str, tuple[int, int]] = {}

    def read(self) -> Iterator[tuple[bool, str]]:
        """Whether it was on stderr, and the text, since the last call."""
        if not os.path.exists(self._folder):
            return  # none has printed anything
        for file in _unread(self._base, self._run, self._read):
            for line in _whole_lines(file):
                said = _LINE.fullmatch(line)
                if said is not None:
                    text = said[4] if said[3].islower() else said[4][:-1]
                    yield said[3] in b"eE", text.decode(errors="replace")


def read_output(base: Base, run: str, job: int) -> str:
    """All that is kept of what a job has printed."""
    return b"".join(OutputReader(base, run, job).read()).decode(errors="replace")


def _unread(base: Base, run: str, read: dict[str, tuple[int, int]]) -> Iterator[BinaryIO]:
    """The files of a run's output, each where it was left; `read` notes its inode and how far."""
    for path in _paths(base, run):
        with contextlib.ExitStack() as stack:
            files = []
            for name in (f"{path}.old", path):
                with contextlib.suppress(FileNotFoundError):
                    files.append(stack.enter_context(open_regular(name)))
            inodes = [os.fstat(file.fileno()).st_ino for file in files]
            known, at = read.get(path, (0, 0))
            # The first that has it: a new file may have got the inode of one that is gone.
            first = inodes.index(known) if known in inodes else 0
            for file, inode in list(zip(files, inodes, strict=True))[first:]:
                file.seek(at if inode == known and inode == inodes[first] else 0)
                yield file
                read[path] = inode, file.tell()


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    while (line := file.readline()).endswith(b"\n"):
        yield line
    file.seek(-len(line), os.SEEK_CUR)  # it is being written


def _paths(base: Base, run: str) -> list[str]:
    """The files that the output of a run is added to."""
    folder = base.job_folders(run)
    with contextlib.suppress(FileNotFoundError):
        names = {name.removesuffix(".old") for name in os.listdir(folder)}
        return [f"{folder}/{name}" for name in sorted(names) if name.startswith("output.")]
    return []
