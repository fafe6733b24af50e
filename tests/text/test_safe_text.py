"""Job text as it is shown, and read as it comes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.text.safe_text import complete, plain, settled
from postroom.web.log_reader import NOTHING, read_log


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("bell\x07", "bell\u2407"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x85b", "a\\u0085b"),
        ("one\r\ntwo\n", "one\ntwo\n"),
        ("tab\tstays", "tab\tstays"),
        ("\0\0holes", "holes"),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out_or_shown(raw: str, shown: str) -> None:
    assert plain(raw) == shown


def test_of_a_progress_bar_the_last_state_is_left() -> None:
    assert settled("10%\r20%\r30%\ndone\r\n50%\r") == "30%\ndone\n50%"


@pytest.mark.parametrize("text", ["ä€𝄞", "a\x1b[31mb\x1b[0m", "x\x1b]0;t\x07y", "one\r\ntwo"])
def test_in_whatever_pieces_it_comes_the_text_is_the_same(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        first = complete(data[:cut])
        assert first <= cut
        pieces = data[:first].decode(), data[first:].decode()
        assert plain(pieces[0]) + plain(pieces[1]) == plain(text)


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
    piece = read_log(str(tmp_path), str(log), most=1000)
    assert piece.text.startswith("line 9")
    assert piece.text.endswith("line 9999\n")
    assert piece.skipped == log.stat().st_size - len(piece.text)


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
