"""Logs are read from a mark on, and only inside the base."""

from __future__ import annotations

import os
from pathlib import Path

from postroom.web.log_reader import NOTHING, read_log


def test_a_log_is_read_from_its_mark_on(tmp_path: Path) -> None:
    log = tmp_path / "0.OUT"
    log.write_text("one\n")
    first = read_log(str(tmp_path), str(log))
    assert (first.text, first.fresh) == ("one\n", True)
    with log.open("a") as file:
        file.write("two\n")
    second = read_log(str(tmp_path), str(log), first.mark)
    assert (second.text, second.fresh) == ("two\n", False)
    assert read_log(str(tmp_path), str(log), second.mark).text == ""


def test_a_log_that_was_replaced_or_cut_is_read_anew(tmp_path: Path) -> None:
    log, new = tmp_path / "0.OUT", tmp_path / "new"
    log.write_text("a long first attempt\n")
    mark = read_log(str(tmp_path), str(log)).mark
    new.write_text("a second attempt, which is longer than the first\n")
    os.replace(new, log)
    again = read_log(str(tmp_path), str(log), mark)
    assert again.fresh
    assert again.text.startswith("a second")
    os.truncate(log, 4)
    assert read_log(str(tmp_path), str(log), again.mark).fresh


def test_of_a_long_log_the_end_is_read_from_a_line_on(tmp_path: Path) -> None:
    log = tmp_path / "0.OUT"
    log.write_text("".join(f"line {n}\n" for n in range(10_000)))
    chunk = read_log(str(tmp_path), str(log), most=1000)
    assert chunk.text.startswith("line 9")
    assert chunk.text.endswith("line 9999\n")
    assert chunk.skipped == log.stat().st_size - len(chunk.text)


def test_no_link_is_followed_and_nothing_outside_is_read(tmp_path: Path) -> None:
    root = tmp_path / "base"
    (root / "runs" / "r" / "0").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    (root / "runs" / "r" / "0" / "0.OUT").symlink_to(secret)
    (root / "runs" / "link").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    for path in (
        root / "runs" / "r" / "0" / "0.OUT",
        root / "runs" / "link" / "secret",
        root / ".." / "secret",
        secret,
        root / "fifo",
        root / "runs",
        root / "absent",
    ):
        assert read_log(str(root), str(path)) == NOTHING, path
    assert read_log(str(root), "") == NOTHING
