"""The folder of a command: attempts, facts, and logs of bounded size."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from postroom.commands.job_folder import CappedLog, JobFolder, tail


def test_the_files_of_an_earlier_attempt_move_aside(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path / "job_1"))
    assert folder.begin() == 1
    folder.tell({"name": "job_1"})
    Path(folder.out).write_text("first")
    Path(folder.path, "mine.txt").write_text("the command's own file stays")
    folder.end({"outcome": "failed"}, ok=False)
    assert folder.begin() == 2
    assert sorted(os.listdir(folder.path)) == ["attempts", "mine.txt"]
    assert sorted(os.listdir(f"{folder.path}/attempts/1")) == ["FAILURE", "INFO", "job_1.OUT"]
    assert not folder.finished


def test_a_move_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path / "job_1"))
    folder.begin()
    folder.tell({"name": "job_1"})
    folder.end({}, ok=False)
    os.makedirs(f"{folder.path}/attempts/1")
    os.rename(f"{folder.path}/FAILURE", f"{folder.path}/attempts/1/FAILURE")  # and INFO is here
    assert folder.begin() == 3
    assert os.listdir(f"{folder.path}/attempts/2") == ["INFO"]


def test_info_holds_a_line_for_each_fact(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path / "job_1"))
    folder.begin()
    folder.tell({"command": "echo 1\necho 2", "gpu": "none"})
    folder.end({"outcome": "ok", "exit": 0}, ok=True)
    info = folder.read_info()
    assert info["command"] == '"echo 1\\necho 2"'
    assert (info["outcome"], info["exit"]) == ("ok", "0")
    assert folder.finished


def test_only_the_very_job_that_succeeded_counts(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path / "job_1"))
    folder.begin()
    folder.tell({"job": "r/3", "attempt": 1})
    ended = {"ended": "now", "seconds": 1, "outcome": "ok", "exit": 0}
    folder.end(ended, ok=True)
    assert folder.has_ended_well("r/3")
    assert not folder.has_ended_well("r/4")
    os.unlink(f"{folder.path}/SUCCESS")
    assert not folder.has_ended_well("r/3")


def test_a_long_log_keeps_its_start_and_its_end(tmp_path: Path) -> None:
    log = CappedLog(str(tmp_path / "log"), 16 << 10)
    os.write(log.fd, b"start" + b"." * (200 << 10))
    log.trim()
    os.write(log.fd, b"end")
    log.close()
    text = (tmp_path / "log").read_text()
    assert len(text) < 17 << 10
    assert text.startswith("start") and text.endswith("end")
    assert f"{(200 << 10) + 8 - (16 << 10)} bytes left out" in text


def test_the_tail_of_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert tail(str(tmp_path / "none")) == ""


def test_a_fifo_for_a_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    assert tail(str(tmp_path / "log")) == ""


def test_a_folder_that_cannot_be_read_does_not_say_that_it_did_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = JobFolder(str(tmp_path / "job"))
    folder.begin()
    folder.end({}, ok=True)

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("postroom.commands.job_folder.open_regular", fails)
    with pytest.raises(OSError, match="Too many"):
        folder.has_ended_well("r/3")
