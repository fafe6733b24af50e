"""Sends what appears in the folder of a command, on the far side, to the folder that people read.

Output is sent as it grows. A checkpoint is sent when its file has not changed for a moment, and
again when the command ends: if the pilot is lost, the next attempt continues from what was sent.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ..parcel.container import PARCEL_LIMIT, Buffer
from ..store.files import LocalFiles
from .wire import Wire

# At most this much of a growing file is sent at once.
PART = 1 << 20
# A checkpoint is looked for so often.
LOOK_S = 2.0
CHECKPOINT = "checkpoint"


def send_growth(
    wire: Wire, path: str, seen: tuple[int, int], kind: str, **words: str | int
) -> tuple[int, int]:
    """Send what a file holds behind byte `seen[1]`; return its inode, and how far it was sent.

    A file that has become shorter, or is another one, is sent from its beginning.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return seen
    try:
        status = os.fstat(fd)
        at = seen[1]
        if status.st_size < at or seen[0] not in (0, status.st_ino):
            at = 0
        while data := os.pread(fd, PART, at):
            wire.send(kind, data, at=at, **words)
            at += len(data)
        return status.st_ino, at
    finally:
        os.close(fd)


class FolderMirror:
    """One command's folder."""

    def __init__(self, folder: str, run: str, job: int) -> None:
        self.folder = folder
        self._run = run
        self._job = job
        self._grown: dict[str, tuple[int, int]] = {}
        self._sent: dict[str, tuple[int, int]] = {}  # of whole files: size and time of change
        self._seen: dict[str, tuple[int, int]] = {}
        self._look_at = 0.0
        self._files = LocalFiles()

    def send(self, wire: Wire, now: float, *, last: bool = False) -> None:
        """Send what is new; `last`: the command has ended."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                if entry.is_file(follow_symlinks=False):
                    name = entry.name
                    before = self._grown.get(name)
                    words: dict[str, Any] = {"run": self._run, "job": self._job, "name": name}
                    after = send_growth(wire, entry.path, before or (0, 0), "folder", **words)
                    if before is None and not after[1]:
                        wire.send("folder", b"", at=0, **words)  # empty, such as SUCCESS
                    self._grown[name] = after
        if last or now >= self._look_at:
            self._look_at = now + LOOK_S
            self._send_whole(wire, last=last)

    def _send_whole(self, wire: Wire, *, last: bool) -> None:
        """Send files of folders inside: those that have changed, and are not being written."""
        for parent, _, names in os.walk(self.folder):
            inside = os.path.relpath(parent, self.folder)
            if inside == "." or (not last and inside.split(os.sep)[0] != CHECKPOINT):
                continue
            for name in names:
                path = f"{parent}/{name}"
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    state = status.st_size, status.st_mtime_ns
                    if state == self._sent.get(path):
                        continue
                    if not last and state != self._seen.get(path):
                        self._seen[path] = state
                        continue
                    load: Buffer = self._files.view(path, PARCEL_LIMIT)
                    words = {"run": self._run, "job": self._job, "name": f"{inside}/{name}"}
                    wire.send("folder", load, at=-1, **words)
                    self._sent[path] = state
