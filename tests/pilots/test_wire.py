"""Frames over two pipes: what comes is what was sent, or the wire ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.pilots.wire import SPOOL_BYTES, Frame, Wire, WireError


class Pair:
    """Two ends; what the first sends, the second hears, unless the test changes it."""

    def __init__(self, folder: Path) -> None:
        self.reads, self.writes = os.pipe()
        self.back_reads, self.back_writes = os.pipe()
        spools = iter(range(100))
        self.near = Wire(self.back_reads, self.writes, spool=lambda: f"{folder}/{next(spools)}")
        self.far = Wire(self.reads, self.back_writes, spool=lambda: f"{folder}/{next(spools)}")

    def close(self) -> None:
        self.near.close(wait_s=5)
        self.far.close(wait_s=5)
        os.close(self.reads)
        os.close(self.back_reads)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_frames_come_in_their_order_with_their_words_and_loads(pair: Pair) -> None:
    pair.near.send("letter", line="POSTROOM 1 \n", commands=[1, 2])
    pair.near.send("record", b"a\nb\0c", at=64)
    pair.near.send("ping")
    pair.near.close(wait_s=5)
    frames = list(pair.far.frames())
    assert frames == [
        Frame("letter", {"line": "POSTROOM 1 \n", "commands": [1, 2]}),
        Frame("record", {"at": 64}, b"a\nb\0c"),
        Frame("ping"),
    ]


def test_a_large_load_goes_into_a_file_as_it_comes(pair: Pair) -> None:
    load = os.urandom(SPOOL_BYTES) * 20
    pair.near.send("result", memoryview(load), first=3)
    pair.near.close()
    frame = next(pair.far.frames())
    assert frame.data == b""
    assert Path(frame.path).read_bytes() == load


def raw(pair: Pair, data: bytes) -> None:
    """Put bytes on the wire as they are."""
    os.write(pair.writes, data)
    pair.near.close(wait_s=5)


def encoded(folder: Path) -> bytes:
    """The bytes of one frame."""
    reads, writes = os.pipe()
    wire = Wire(reads, writes, spool=lambda: f"{folder}/none")
    wire.send("record", b"some bytes", at=7)
    wire.close(wait_s=5)
    data = os.read(reads, 1 << 16)
    os.close(reads)
    return data


@pytest.mark.parametrize("place", [0, 5, 10, 18, 25, -12, -3, -1])
def test_one_wrong_byte_anywhere_ends_the_wire(pair: Pair, tmp_path: Path, place: int) -> None:
    data = bytearray(encoded(tmp_path))
    data[place] ^= 0x10
    raw(pair, bytes(data))
    with pytest.raises(WireError):
        list(pair.far.frames())


def test_half_a_frame_is_no_frame(pair: Pair, tmp_path: Path) -> None:
    data = encoded(tmp_path)
    raw(pair, data + data[:-1])
    frames = pair.far.frames()
    assert next(frames).data == b"some bytes"
    with pytest.raises(WireError, match="in the middle"):
        next(frames)


def test_each_frame_ends_a_line_since_slurm_passes_on_only_whole_ones(tmp_path: Path) -> None:
    assert encoded(tmp_path).endswith(b"\n")


def test_sending_to_nobody_neither_waits_nor_fails(pair: Pair) -> None:
    nobody = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nobody, pair.reads)
    os.close(nobody)
    for _ in range(100):
        pair.near.send("record", bytes(SPOOL_BYTES), at=0)
    pair.near.close(wait_s=5)
    assert pair.near.closed
