"""Our own modules are found by processes that we start, wherever these run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.system.own_python import check_alive, own_python, start_detached


def test_a_module_is_run_by_this_very_python_with_its_words() -> None:
    command = own_python("postroom.x", "a", "b c")
    assert command[:2] == [sys.executable, "-P"]
    assert command[-3:] == ["postroom.x", "a", "b c"]


def test_nothing_is_imported_from_the_folder_that_it_starts_in(tmp_path: Path) -> None:
    for name in ("dataclasses", "heapq", "postroom"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else runs as you')\n")
    done = subprocess.run(
        own_python("postroom", "--help"), cwd=tmp_path, capture_output=True, check=True
    )
    assert b"postroom" in done.stdout


def test_a_detached_process_that_ends_at_once_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open(path, "wb") as log:
        process = start_detached("postroom", "no-such-verb", log=log.fileno())
    with pytest.raises(PostroomError, match="no-such-verb"):
        for _ in range(20):
            check_alive(process, str(path))
    with open(path, "wb") as log:
        process = start_detached("postroom", "--help", log=log.fileno())
    check_alive(process, str(path), fine=(0,))
    process.wait()


def test_a_detached_process_has_a_session_of_its_own_and_a_log(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        process = start_detached("postroom", "--help", log=log.fileno())
        assert process.stdin is None
        assert os.getsid(process.pid) == process.pid
        assert process.wait(60) == 0
    assert "postroom" in (tmp_path / "log").read_text()
