"""Our own modules are found by processes that we start, wherever these run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from postroom.system.own_python import PACKAGE_PARENT, own_python, start_detached


def test_a_module_is_run_by_this_very_python_with_its_words() -> None:
    assert own_python("postroom.x", "a", "b c") == [sys.executable, "-m", "postroom.x", "a", "b c"]


def test_the_package_is_found_from_its_parent_folder() -> None:
    done = subprocess.run(
        own_python("postroom", "--help"), cwd=PACKAGE_PARENT, capture_output=True, check=True
    )
    assert b"postroom" in done.stdout


def test_a_detached_process_has_a_session_of_its_own_and_a_log(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        process = start_detached("postroom", "--help", log=log.fileno())
        assert process.stdin is None
        assert os.getsid(process.pid) == process.pid
        assert process.wait(60) == 0
    assert "postroom" in (tmp_path / "log").read_text()
