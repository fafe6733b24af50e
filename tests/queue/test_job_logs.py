"""Logs of jobs: their last lines, and new output as it comes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.queue import job_logs
from postroom.queue.job_logs import Follower, PrintedLog, follow
from postroom.store.base import create_base
from postroom.store.kernel_output import OutputReader, add_output


def last_lines(path: str, lines: int | None) -> list[bytes]:
    return list(follow(Follower(path, lines), over=lambda: True, pause=lambda: None))


@pytest.mark.parametrize(
    ("text", "lines", "shown"),
    [
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 2, "b\nc"),
        ("a\nb\n", 9, "a\nb\n"),
        ("a\nb\n", 0, ""),
        ("a\nb\n", None, "a\nb\n"),
        ("", 3, ""),
    ],
)
def test_the_last_lines_are_found_from_the_end(
    tmp_path: Path, text: str, lines: int | None, shown: str
) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert b"".join(last_lines(str(log), lines)).decode() == shown


def test_what_is_not_a_file_is_refused_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(PostroomError, match="not a regular file"):
            list(last_lines(str(path), None))
    assert list(last_lines(str(tmp_path / "nothing"), None)) == []


def test_the_last_lines_are_found_over_many_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "BLOCK", 5)
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    assert b"".join(last_lines(str(log), 3)) == b"line 97\nline 98\nline 99\n"


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    assert list(last_lines(str(tmp_path / "none"), 3)) == []


def test_new_output_is_read_also_from_a_new_attempt(tmp_path: Path) -> None:
    log, new = tmp_path / "log", tmp_path / "new"
    follower = Follower(str(log), None)
    assert list(follower.read()) == []
    log.write_text("one\n")
    assert list(follower.read()) == [b"one\n"]
    with log.open("a") as file:
        file.write("two\n")
    new.write_text("a new attempt\n")
    os.replace(new, log)
    assert list(follower.read()) == [b"two\n"]
    assert list(follower.read()) == [b"a new attempt\n"]
    follower.close()


def test_following_ends_after_the_last_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\n")
    ends = iter([False, True])

    def over() -> bool:
        with log.open("a") as file:
            file.write("more\n")
        return next(ends)

    assert (
        b"".join(follow(Follower(str(log), None), over=over, pause=lambda: None))
        == b"one\nmore\nmore\n"
    )


def test_the_output_of_a_task_is_followed_from_its_last_lines_on(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    add_output(base, "0", ("r", 3, 1), "o", b"one\ntwo\nthree\n")
    log = PrintedLog(OutputReader(base, "r", 3), 2, None)
    assert b"".join(log.read()) == b"two\nthree\n"
    add_output(base, "0", ("r", 3, 1), "o", b"four\n")
    assert b"".join(log.read()) == b"four\n"
    assert b"".join(PrintedLog(OutputReader(base, "r", 3), 0, None).read()) == b""
