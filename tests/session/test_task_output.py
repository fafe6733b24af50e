"""What tasks print belongs to their job; what is printed while no job runs goes into the log."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path

import pytest

from postroom.session.task_output import LONGEST, KernelOutput, TaskOutput
from postroom.store.base import create_base
from postroom.store.journal import Journal
from postroom.store.kernel_output import OutputReader, read_output


def test_lines_are_logged_whole_and_the_rest_at_the_end(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    reader, writer = os.pipe()
    pipe = os.fdopen(reader, "rb", buffering=0)
    output = TaskOutput(pipe, base, Journal(base, "guardian 0"), "0")
    assert not output.read()  # nothing yet, and it does not wait
    os.write(writer, b"one\ntw")
    assert output.read()
    os.write(writer, b"o\n\xff\nrest")
    os.close(writer)
    output.close()
    lines = [json.loads(line) for line in Path(base.log).read_text().splitlines()]
    assert [line["text"] for line in lines] == ["one", "two", "\ufffd", "rest"]
    assert {line["stream"] for line in lines} == {"output"}


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    reader, writer = os.pipe()
    pipe = os.fdopen(reader, "rb", buffering=0)
    output = TaskOutput(pipe, base, Journal(base, "guardian 0"), "0")
    for _ in range(3):
        os.write(writer, b"x" * (LONGEST // 2))
        output.read()
    os.close(writer)
    output.close()
    lines = [json.loads(line) for line in Path(base.log).read_text().splitlines()]
    assert [len(line["text"]) for line in lines] == [LONGEST * 3 // 2]


def test_what_python_prints_belongs_to_the_job_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = create_base(tmp_path / "base")
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    output = KernelOutput(base, "0")
    output.install()
    output.job = ("r", 3, 1)
    print("one", 2)
    sys.stderr.write("half")
    assert read_output(base, "r", 3) == "one 2\n"
    assert output.unfinished == {"e": b"half"}
    handler = logging.StreamHandler()
    logging.getLogger("kernel of a test").addHandler(handler)
    logging.getLogger("kernel of a test").warning(" done")
    logging.getLogger("kernel of a test").removeHandler(handler)
    print("bar 50%", end="\r", flush=True)
    assert read_output(base, "r", 3) == "one 2\nhalf done\nbar 50%\r"
    assert not output.unfinished
    output.job = ("r", 4, 1)
    sys.stdout.buffer.write(b"\xff\n")
    print("\ud800" + "x" * LONGEST)
    assert read_output(base, "r", 4) == "\ufffd\n\\ud800" + "x" * LONGEST + "\n"
    assert sys.stdout.fileno() == 1 and not sys.stdout.isatty()


def test_lines_of_threads_are_not_mixed_up(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    output = KernelOutput(base, "0")
    output.job = ("r", 0, 1)
    threads = [
        threading.Thread(target=lambda: [output.write("o", b"abc\n") for _ in range(100)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_output(base, "r", 0) == "abc\n" * 400


def test_a_job_that_prints_nothing_makes_no_file(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    output = KernelOutput(base, "0")
    output.job = ("r", 0, 1)
    output.flush()
    assert not Path(base.job_folders("r")).exists()
    assert list(OutputReader(base, "r", 0).read()) == []
