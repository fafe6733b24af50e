"""The wire between a stand-in and its far end: frames over two descriptors.

    post <length of the words> <length of the load> <checksum of both and of the words>
    {"kind": "result", "run": "...", "first": 17}         the words: JSON
    ...                                                   the load: a parcel as it is, or a
    <checksum of the load> and a line feed                part of a file; never a pickle

Descriptors are pipes: those of a process, which for Slurm is `srun`. Slurm passes on whole lines,
so a frame ends with one. A thread of its own writes, so
nobody who sends waits for the network; another reads. A large load goes into a file as it comes,
and is sent from a mapped file, so neither side holds it in memory. Whatever is not a whole frame
with the right checksums ends the wire: what came before it counts, nothing behind it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from isal.isal_zlib import crc32

from ..errors import PostroomError
from ..parcel.container import PARCEL_LIMIT, Buffer
from ..system.regular_file import private

# A load above this goes into a file when it arrives.
SPOOL_BYTES = 256 << 10
MOST_WORDS = 1 << 20
_STAMP = b"post"
_HEAD = struct.Struct("<4sIQI")
_TAIL = struct.Struct("<Ic")
_SLICE = 1 << 20


class WireError(PostroomError):
    """What came over a wire is no frame."""


@dataclass
class Frame:
    """One message: words, and a load in memory or in a file."""

    kind: str
    words: dict[str, Any] = field(default_factory=dict)
    data: bytes = b""
    path: str = ""  # of a file that holds the load; its receiver moves or removes it


class Wire:
    """One end of a wire. `send` never waits; `frames` is for a thread that does nothing else."""

    def __init__(self, reads: int, writes: int, *, spool: Callable[[], str]) -> None:
        """`spool` makes a path for a new file, in which a large load is kept."""
        self._reads = reads
        self._writes = writes
        self._spool = spool
        for fd in (reads, writes):
            # A slice at a time instead of 64 KiB: a large load takes a third of the time.
            with contextlib.suppress(OSError):  # it is no pipe, or this user has too many
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _SLICE)
        self._waiting: queue.SimpleQueue[tuple[bytes, Buffer] | None] = queue.SimpleQueue()
        self.heard_at = time.monotonic()  # when the other end was last heard
        self.closed = False  # the other end takes nothing any more
        self._writer = threading.Thread(target=self._write, name="wire", daemon=True)
        self._writer.start()

    def send(self, kind: str, load: Buffer = b"", **words: Any) -> None:
        """Send a frame; a load that may change, or be removed, must be a copy or a mapped file."""
        said = json.dumps({"kind": kind, **words}, separators=(",", ":")).encode()
        if len(said) > MOST_WORDS or len(load) > PARCEL_LIMIT:
            raise WireError(f"a frame of {len(said)} and {len(load)} bytes is too large to send")
        lengths = struct.pack("<IQ", len(said), len(load))
        head = _HEAD.pack(_STAMP, len(said), len(load), crc32(said, crc32(lengths)))
        self._waiting.put((head + said, load))

    def frames(self) -> Iterator[Frame]:
        """What the other end sends, until it is gone; WireError: it sends something else."""
        while head := self._read(_HEAD.size, at_end=True):
            stamp, words_size, load_size, crc = _HEAD.unpack(head)
            if stamp != _STAMP or words_size > MOST_WORDS or load_size > PARCEL_LIMIT:
                raise WireError(f"no frame begins with {head[:24]!r}")
            said = self._read(words_size)
            if crc32(said, crc32(struct.pack("<IQ", words_size, load_size))) != crc:
                raise WireError("the words of a frame do not match their checksum")
            words = json.loads(said)
            frame = Frame(words.pop("kind"), words)
            self._take_load(frame, load_size)
            yield frame

    def close(self, *, wait_s: float = 0.0) -> None:
        """Let nothing more be sent; wait for a while until all that was sent is on its way."""
        self._waiting.put(None)
        self._writer.join(wait_s)

    def _take_load(self, frame: Frame, size: int) -> None:
        if size <= SPOOL_BYTES:
            frame.data = self._read(size)
            seen = crc32(frame.data)
        else:
            frame.path = self._spool()
            seen = self._spool_load(frame.path, size)
        if _TAIL.unpack(self._read(_TAIL.size)) != (seen, b"\n"):
            raise WireError(f"the load of a frame ({frame.kind}) does not match its checksum")

    def _spool_load(self, path: str, size: int) -> int:
        seen = 0
        with open(path, "xb", opener=private) as file:
            while size:
                data = self._read_some(min(size, _SLICE))
                seen = crc32(data, seen)
                size -= len(data)
                file.write(data)
        return seen

    def _read(self, size: int, *, at_end: bool = False) -> bytes:
        """That many bytes; none if the wire ends here and may."""
        parts: list[bytes] = []
        while size:
            data = self._read_some(min(size, _SLICE), at_end=at_end and not parts)
            if not data:
                return b""
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def _read_some(self, size: int, *, at_end: bool = False) -> bytes:
        try:
            data = os.read(self._reads, size)
        except OSError:
            data = b""
        if not data and not at_end:
            raise WireError("the wire ended in the middle of a frame")
        self.heard_at = time.monotonic()
        return data

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the other end is gone: its reader says so
            while (item := self._waiting.get()) is not None:
                # Small frames that wait go together: `srun` makes a message of each write, and the
                # network may hold back the second one until the first is acknowledged, 40 ms later.
                small: list[Buffer] = []
                size = 0
                while item is not None and size + len(item[1]) <= SPOOL_BYTES:
                    head, load = item
                    small += (head, load, _tail(crc32(load)))
                    size += len(head) + len(load)
                    item = None
                    with contextlib.suppress(queue.Empty):
                        if (item := self._waiting.get_nowait()) is None:
                            self._waiting.put(None)  # the end, for the loop outside
                if small:
                    _write_all(self._writes, b"".join(small))
                if item is not None:
                    self._write_large(*item)
                del item
        self.closed = True
        with contextlib.suppress(OSError):
            os.close(self._writes)

    def _write_large(self, head: bytes, load: Buffer) -> None:
        _write_all(self._writes, head)
        view = memoryview(load)
        crc = 0
        for at in range(0, len(view), _SLICE):
            part = view[at : at + _SLICE]
            crc = crc32(part, crc)
            _write_all(self._writes, part)
        _write_all(self._writes, _tail(crc))


def _tail(crc: int) -> bytes:
    return _TAIL.pack(crc, b"\n")


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]
