"""The folder of a command: files for people to read.

    job_7/
      INFO                     what was run, where and when; then how it ended
      job_7.OUT  job_7.ERR     its output; of a very long output, the start and the end. Of a queued
                               command, .OUT has both, in the order in which they came
      timeline.csv             GPU memory and utilisation over time, if it ran for a moment
      SUCCESS or FAILURE       empty; never both, and none while it runs
      command.sh               a command of more than 128 KiB
      snapshot/                what it wrote there, if it ran in a snapshot
      attempts/1/              the same files of earlier attempts
      checkpoint/              of a queued job: for its own files, kept for its next attempt

The result in `result_pool` is what counts, and follows within a moment. If the minder is killed in
between, a command that succeeded is not run again: the next session that gets it reads here how it
ended. If SUCCESS or FAILURE is missing beside a result, `postroom run` adds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from functools import lru_cache

from ..system.absence import absent_is_fine
from ..system.regular_file import open_regular

SUCCESS, FAILURE = "SUCCESS", "FAILURE"
SCRIPT = "command.sh"
COPY = "snapshot"
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_TAIL = 16 << 10


class JobFolder:
    """The folder of one job."""

    def __init__(self, path: str, *, name: str = "") -> None:
        self.path = path
        self.name = name or os.path.basename(path)
        self.info = f"{path}/INFO"
        self.out = f"{path}/{self.name}.OUT"
        self.err = f"{path}/{self.name}.ERR"
        self.timeline = f"{path}/timeline.csv"
        self.checkpoint = f"{path}/checkpoint"
        self._info = -1

    def __del__(self) -> None:
        self._close()  # an attempt that could not be begun, on a full disk, is never ended

    def begin(self) -> int:
        """Begin an attempt and return its number; files of an earlier one move to `attempts`."""
        try:
            os.mkdir(self.path)
            return 1
        except FileExistsError:
            pass
        except FileNotFoundError:
            os.makedirs(self.path, exist_ok=True)
            return 1
        earlier = f"{self.path}/attempts"
        made = os.listdir(earlier) if os.path.isdir(earlier) else []
        number = max((int(name) for name in made if name.isdecimal()), default=0) + 1
        mine = [n for n in os.listdir(self.path) if self._is_ours(n)]
        if not mine:
            return number
        os.makedirs(f"{earlier}/{number}")
        # INFO last: while it is here, an interrupted move is seen and finished by the next attempt.
        for name in sorted(mine, key=lambda n: n == "INFO"):
            os.rename(f"{self.path}/{name}", f"{earlier}/{number}/{name}")
        return number + 1

    def _is_ours(self, name: str) -> bool:
        ours = (self.out, self.err, self.timeline)
        return name in ("INFO", COPY, SUCCESS, FAILURE, *map(os.path.basename, ours))

    def tell(self, facts: dict[str, object]) -> None:
        """Add lines to INFO, which stays open for more until `end`."""
        lines = "".join(f"{name + ':':<10}{_plain(value)}\n" for name, value in facts.items())
        if self._info < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            self._info = os.open(self.info, flags, 0o644)
        os.write(self._info, lines.encode(errors="replace"))

    def end(self, facts: dict[str, object], *, ok: bool | None = None) -> None:
        """Write how an attempt ended. Errors are ignored: the result is what counts."""
        with contextlib.suppress(OSError):
            self.tell(facts)
        self._close()
        if ok is not None:
            with contextlib.suppress(OSError):
                self.finish(ok=ok)

    def _close(self) -> None:
        if self._info >= 0:
            os.close(self._info)
            self._info = -1

    def has_ended_well(self, job: str) -> bool:
        """Whether this very job, not an earlier one of the same command, succeeded here.

        Then its minder was killed before it published that.
        """
        if not os.path.lexists(f"{self.path}/{SUCCESS}"):
            return False
        info = self.read_info()
        facts = ("attempt", "ended", "seconds", "exit")
        return (info.get("job"), info.get("outcome")) == (job, "ok") and all(map(info.get, facts))

    def finish(self, *, ok: bool) -> None:
        """Write SUCCESS or FAILURE."""
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            os.close(os.open(f"{self.path}/{SUCCESS if ok else FAILURE}", flags, 0o644))

    @property
    def finished(self) -> bool:
        """Whether SUCCESS or FAILURE is there."""
        return any(os.path.lexists(f"{self.path}/{mark}") for mark in (SUCCESS, FAILURE))

    def read_info(self) -> dict[str, str]:
        """The facts of INFO; none when there is no such file."""
        with absent_is_fine(), open_regular(self.info) as file:
            lines = file.read().decode(errors="replace").split("\n")
            parts = (line.partition(":") for line in lines)
            return {name: value.strip() for name, colon, value in parts if colon}
        return {}

    def tails(self, *, merged: bool) -> tuple[str, str]:
        """The ends of stdout and of stderr; where both are in one file, it counts as stderr."""
        return ("", tail(self.out)) if merged else (tail(self.out), tail(self.err))


def working_folder(folder: str, cwd: str, source: str) -> str:
    """Where a command runs: in `cwd`, or in the same folder of its copy of a snapshot."""
    return f"{folder}/{COPY}{cwd.removeprefix(source)}" if source else cwd


def tail(path: str, size: int = _TAIL) -> str:
    """The end of a text file; "" when it does not exist."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size).decode(errors="replace")
    return ""


@lru_cache(maxsize=2)
def _second(at: int) -> tuple[str, str]:
    local = time.localtime(at)
    zone = time.strftime("%z", local)
    return time.strftime("%Y-%m-%dT%H:%M:%S", local), f"{zone[:3]}:{zone[3:]}"


def stamp(at: float) -> str:
    """A wall-clock time as people and programs read it."""
    second, zone = _second(int(at))
    return f"{second}.{int(at % 1 * 1000):03d}{zone}"


class CappedLog:
    """An output file of which only the start and the end are kept.

    The command writes to it directly, so `tail -f` works. While a file grows too long, the disk
    space of its middle is given back; when the command ends, the middle is cut out.
    """

    def __init__(self, path: str, most: int) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        self.fd = os.open(path, flags, 0o644)
        self._path = path
        self._half = max(most // 2, 4096) // 4096 * 4096
        self._punched = self._half

    def trim(self) -> None:
        """Give back the disk space of the middle, where the filesystem can."""
        size = os.fstat(self.fd).st_size
        until = (size - self._half) // 4096 * 4096
        if until - self._punched >= self._half:
            length = until - self._punched
            if _fallocate(self.fd, self._punched, length):
                self._punched = until

    def close(self) -> None:
        """Cut the middle out, and write in its place how much that was."""
        size = os.fstat(self.fd).st_size
        left_out = size - 2 * self._half
        if left_out > 0:
            head = os.pread(self.fd, self._half, 0)
            end = os.pread(self.fd, self._half, size - self._half)
            words = f"\n[... {left_out} bytes left out by postroom ...]\n".encode()
            os.ftruncate(self.fd, 0)
            for chunk in (head, words, end):
                os.write(self.fd, chunk)
        os.close(self.fd)


def _fallocate(fd: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    return bool(libc.fallocate(fd, _PUNCH_HOLE, offset, length) == 0)


def _plain(value: object) -> str:
    text = str(value)
    return text if text.isprintable() else json.dumps(text)
