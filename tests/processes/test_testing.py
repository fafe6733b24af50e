"""The helpers that users test with: they give up loudly, and nothing outlives a test unseen."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from postroom import Job, testing
from postroom.system.process_tree import MARK, mark_of
from postroom.testing import RealSessions, wait_until


def test_waiting_that_times_out_shows_what_the_folder_holds(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "postroom.log").write_text("the last words\n")
    (tmp_path / "a file").write_text("12345")
    with pytest.raises(AssertionError) as caught:
        wait_until(lambda: False, what="a miracle", folder=tmp_path, timeout_s=0)
    assert "a miracle did not come true" in str(caught.value)
    assert "5  a file" in str(caught.value)
    assert "the last words" in str(caught.value)


def test_waiting_returns_what_came_true() -> None:
    answers = iter([0, "", None, 42])
    assert wait_until(lambda: next(answers)) == 42


def test_a_process_that_outlives_its_session_is_ended_and_fails_the_test(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with (
        pytest.raises(AssertionError, match="1 processes outlived their sessions"),
        testing.sessions(base) as sessions,
    ):
        sessions.start()
        environment = {**os.environ, MARK: mark_of(str(base), "0")}
        sessions.stop()
        stray = subprocess.Popen(["sleep", "1000"], env=environment)
        # Linux shows the environment of a new program a moment after it has begun.
        seen = Path(f"/proc/{stray.pid}/environ")
        wait_until(lambda: MARK.encode() in seen.read_bytes(), what="the mark of the stray")
    assert stray.wait(60) == -9


def test_a_session_that_cannot_start_says_why(sessions: RealSessions) -> None:
    with pytest.raises(AssertionError, match=r"session x ended: .*77"):
        sessions.start("x", gpu="77")


def test_an_example_from_the_module_itself_works(sessions: RealSessions) -> None:
    sessions.start("0")
    with sessions.master() as master:
        assert master.run([Job("kernels:double", x=4)]).results() == [8]
    os.kill(sessions.worker("0"), 9)
    sessions.wait_until(lambda: sessions.ready("0"))
