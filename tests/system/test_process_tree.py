"""Process trees: found by their mark or by descent, and ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from postroom.system.process_tree import (
    MARK,
    below,
    holders,
    mark_of,
    marked,
    parent_of,
    sweep,
)

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
