"""What kernels print: kept for each job, and bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.store import kernel_output
from postroom.store.base import Base, create_base
from postroom.store.kernel_output import OutputReader, add_output, read_output

RUN = "20261117-000000-abcdef"


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


def add(base: Base, job: int, data: bytes, stream: str = "o", *, attempt: int = 1) -> None:
    add_output(base, "0", (RUN, job, attempt), stream, data)


def test_each_job_gets_back_what_it_printed(base: Base) -> None:
    assert read_output(base, RUN, 1) == ""
    add(base, 1, b"one\ntwo\n")
    add(base, 11, b"of another job\n")
    add(base, 1, b"half", "e")
    add(base, 1, b" a line\n\xff\n", "e")
    add_output(base, "1", (RUN, 1, 2), "o", b"on another agent\n")
    assert read_output(base, RUN, 1) == "one\ntwo\nhalf a line\n\ufffd\non another agent\n"
    assert b"".join(OutputReader(base, RUN, 1, err=True).read()) == b"half a line\n\xff\n"
    assert b"".join(OutputReader(base, RUN, 1).read(attempt=2)) == b"on another agent\n"


def test_a_reader_goes_on_where_it_was(base: Base) -> None:
    reader = OutputReader(base, RUN, 1)
    assert list(reader.read()) == []
    add(base, 1, b"one\n")
    assert list(reader.read()) == [b"one\n"]
    with open(base.kernel_output(RUN, "0"), "ab") as file:
        file.write(b"1 1 o tw")  # it is being written
    assert list(reader.read()) == []
    with open(base.kernel_output(RUN, "0"), "ab") as file:
        file.write(b"o\nsomething else\n")
    assert list(reader.read()) == [b"two\n"]


def test_the_newest_output_is_kept_and_the_files_are_bounded(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_output, "KEEP_BYTES", 1000)
    reader = OutputReader(base, RUN, 1)
    seen = b""
    for n in range(500):
        add(base, 1, b"line %d\n" % n)
        seen += b"".join(reader.read())
    assert seen.count(b"\n") == 500, "whoever reads along misses nothing"
    kept = read_output(base, RUN, 1)
    assert kept.endswith("line 498\nline 499\n") and "line 0\n" not in kept
    assert sum(path.stat().st_size for path in Path(base.job_folders(RUN)).iterdir()) < 2100


def test_output_that_cannot_be_written_is_dropped(base: Base) -> None:
    os.mkdir(base.job_folders(RUN))
    os.symlink("/etc/passwd", base.kernel_output(RUN, "0"))
    add(base, 1, b"one\n")
    assert read_output(base, "no-such-run", 1) == ""
