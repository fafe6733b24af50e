"""Process trees: found by their mark or by descent, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.system.process_tree import (
    MARK,
    _is_starting,
    below,
    holders,
    mark_of,
    marked,
    parent_of,
    sweep,
)
from postroom.system.processes import stat
from postroom.testing import wait_until

SLEEP = "import time; print('up', flush=True); time.sleep(60)"


def start(mark: str, *, code: str = SLEEP) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def finish(process: subprocess.Popen[bytes]) -> int:
    process.kill()
    assert process.stdout is not None
    process.stdout.close()
    return process.wait()


def test_a_marked_process_is_found_and_ended(tmp_path: Path) -> None:
    mark, other = mark_of(str(tmp_path), "0"), mark_of(str(tmp_path), "1")
    process, stranger = start(mark), start(other)
    try:
        assert marked(mark) == [process.pid]
        assert sweep(mark) == 1
        assert process.wait(10) == -9
        assert stranger.poll() is None
        assert sweep(mark) == 0
    finally:
        finish(process)
        finish(stranger)


def test_a_process_that_is_just_being_started_is_found(tmp_path: Path) -> None:
    mark = mark_of(str(tmp_path), "0")
    for _ in range(20):
        # It is within its exec when this returns, and has no environment for a moment.
        process = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: mark})
        try:
            assert marked(mark) == [process.pid]
        finally:
            process.kill()
            process.wait()


def test_an_orphan_that_has_not_begun_its_program_yet_is_found(tmp_path: Path) -> None:
    mark = mark_of(str(tmp_path), "0")
    code = (
        "import os, sys, time\n"
        "if os.fork():\n    os._exit(0)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(0.3)\n"
        f"os.execve('/bin/sleep', ['sleep', '60'], {{{MARK!r}: {mark!r}}})\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        parent.wait()
        try:
            assert marked(mark) == [orphan]
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_an_empty_environment_is_no_reason_to_wait() -> None:
    with subprocess.Popen(["sleep", "60"], env={}) as process:
        try:
            wait_until(lambda: (seen := stat(process.pid)) and seen.environ_end)
            seen = stat(process.pid)
            assert seen is not None and not _is_starting(seen, False)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("state", "flags", "starting"),
    [("R", 0, True), ("D", 0, True), ("Z", 0, False), ("R", 0x4, False), ("S", 0x200000, False)],
)
def test_who_has_no_environment_is_within_its_exec_or_will_never_have_one(
    monkeypatch: pytest.MonkeyPatch, state: str, flags: int, starting: bool
) -> None:
    seen = stat(os.getpid())
    assert seen is not None
    made = seen._replace(state=state, flags=flags, environ_end=0)
    monkeypatch.setattr("postroom.system.process_tree.stat", lambda pid: made)
    assert _is_starting(seen, False) == starting


def test_descendants_are_found_below_their_ancestor(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
    mark = mark_of(str(tmp_path), "0")
    process = start(mark, code=code)
    try:
        (child,) = below(process.pid)
        assert parent_of(child) == process.pid
        assert process.pid in below(os.getpid())
    finally:
        sweep(mark)
        finish(process)
    assert parent_of(process.pid) is None


def test_a_process_without_the_mark_is_ended_for_the_file_that_it_has_open(tmp_path: Path) -> None:
    path, namesake = tmp_path / "0.tree", tmp_path / "other" / "0.tree"
    namesake.parent.mkdir()
    path.touch()
    namesake.touch()
    link = tmp_path / "mounted elsewhere"
    link.symlink_to(tmp_path)
    process = start("another", code=f"f = open({str(path)!r})\n{SLEEP}")
    stranger = start("another", code=f"f = open({str(namesake)!r})\n{SLEEP}")
    try:
        assert sweep("nobody's mark") == 0
        assert sweep("nobody's mark", held=str(link / "0.tree")) == 1
        assert process.wait(10) == -9
        assert stranger.poll() is None
    finally:
        finish(process)
        finish(stranger)


def test_the_holder_of_an_open_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    process = start("x", code=f"f = open({str(path)!r})\n{SLEEP}")
    try:
        assert holders(str(path)) == [process.pid]
    finally:
        finish(process)
    assert holders(str(path)) == []
