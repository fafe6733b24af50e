"""What a kernel changes of its process is put back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.session.process_state import SPOILT, ProcessState, mark


def test_the_folder_the_environment_and_the_handlers_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ProcessState()
    folder, environment = os.getcwd(), dict(os.environ)
    handler = signal.getsignal(signal.SIGUSR1)
    os.chdir(tmp_path)
    os.environ["NEW"] = "1"
    del os.environ["PATH"]
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.alarm(1000)
    monkeypatch.setattr(sys, "stdout", None)
    state.restore()
    assert (os.getcwd(), dict(os.environ)) == (folder, environment)
    assert signal.getsignal(signal.SIGUSR1) == handler
    assert signal.alarm(0) == 0
    assert sys.stdout is not None


def test_the_umask_is_put_back() -> None:
    state = ProcessState()
    before = os.umask(0o777)
    state.restore()
    assert os.umask(before) == before


def test_a_folder_that_was_removed_is_left(tmp_path: Path) -> None:
    state = ProcessState()
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    state.restore()
    assert os.getcwd()


def test_what_was_set_for_a_job_stays() -> None:
    state = ProcessState()
    state.set_variable("POSTROOM_JOB", "run/1")
    state.restore()
    assert os.environ["POSTROOM_JOB"] == "run/1"
    del os.environ["POSTROOM_JOB"]


def test_what_was_saved_later_is_what_counts() -> None:
    state = ProcessState()
    os.environ["SET_BY_AN_IMPORT"] = "1"
    state.save()
    state.restore()
    assert os.environ.pop("SET_BY_AN_IMPORT") == "1"


@pytest.mark.parametrize("then", ["pass", "os.open('/etc/passwd', os.O_RDONLY)"])
def test_a_process_whose_marked_descriptor_was_closed_ends_at_once(
    tmp_path: Path, then: str
) -> None:
    code = f"""
import os
from postroom.session.process_state import ProcessState, mark
fd = mark(os.open({str(tmp_path / "hand")!r}, os.O_RDWR | os.O_CREAT))
state = ProcessState()
state.restore(fd)
os.closerange(fd, 1000)
{then}
state.restore(fd)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == SPOILT


def test_a_marked_descriptor_may_be_written(tmp_path: Path) -> None:
    state = ProcessState()
    fd = mark(os.open(tmp_path / "hand", os.O_RDWR | os.O_CREAT))
    os.pwrite(fd, b"running", 0)
    state.restore(fd)
    os.close(fd)


def test_a_soft_limit_is_put_back_and_a_hard_one_uses_the_process_up() -> None:
    code = """
from postroom.session.process_state import ProcessState
state = ProcessState()
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
state.restore()
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64 and not state.used_up
"""
    subprocess.run([sys.executable, "-c", code], check=True)
