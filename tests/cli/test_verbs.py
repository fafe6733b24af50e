"""What the verbs of the queue refuse, and how they say it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from postroom.cli.master import standing
from postroom.errors import PostroomError
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base

from .kit import call


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["submit"], "name a command"),
        (["submit", "--array", "9-1", "x"], "not an array"),
        (["submit", "--array", "1-9:0", "x"], "not an array"),
        (["submit", "-t", "soon", "x"], "not a duration"),
        (["submit", "-m", "lots", "x"], "not an amount of memory"),
        (["submit", "-e", "A", "x"], "NAME=VALUE"),
        (["submit", "-C", "/nowhere", "x"], "does not exist"),
        (["submit", "-P", " ", "x"], "a project's name"),
        (["submit", "--after", "abcdef/1", "x"], "there is no run 'abcdef'"),
        (["submit", "--snapshot", "-C", "/nowhere", "x"], "does not exist"),
        (["show", "nothing/1"], "there is no run"),
        (["show", "no job"], "is not a job"),
        (["jobs", "-s", "broken"], "there is no state 'broken'"),
        (["kill", "zzzzzz"], "there is no run"),
        (["rerun"], "name jobs, or give --failed"),
        (["wait"], "name jobs, or a project"),
        (["pause", "-P", "x"], "there is no project 'x'"),
        (["drain", "7"], "there is no agent '7'"),
        (["drain", ""], "there is no agent ''"),
        (["resume", "--run", ""], "there is no run ''"),
        (["status", "-b", ""], "cannot be a base"),
        (["attach", "/nowhere"], "there is no batch in '/nowhere'"),
        (["new", ""], "cannot be a folder"),
        (["new", "/dev/null/x"], "cannot be a folder: Not a directory; choose one"),
        (["grid-engine", "/dev/null/x"], "cannot be a folder: Not a directory; choose one"),
        (["run", "-c", "x", "--gpus", "cpu", "--output-dir", "/dev/null/x"], "cannot be a folder"),
        (["run", "/dev/null", "--gpus", "cpu"], "is not a file; write - to read"),
        (["run", "-c", "x", "--gpu-file", "/nowhere"], "GPUs in '/nowhere': No such file"),
        (["priority", "abcdef/1"], "Missing parameter"),
        (["move", "abcdef/1", "before"], "move JOB before OTHER"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    base: Base,
    view: QueueView,
    words: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=error) as caught:
        call(base, *words)
    assert isinstance(caught.value, PostroomError) or hasattr(caught.value, "format_message")
    assert view.jobs().jobs == []


def test_a_file_that_is_in_the_way_is_named_not_its_errno(base: Base) -> None:
    """Whatever verb it is: the last line of defence is in `__main__`."""
    script = "import postroom.__main__ as m; m._end(lambda: open('/dev/null/x'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"-c: /dev/null/x: Not a directory\n")


def test_a_scheduler_says_when_it_is_active_and_when_not() -> None:
    assert standing(True, []) == "active; agents: none yet"
    assert standing(True, ["0", "1"]) == "active; agents: 0, 1"
    assert standing(False, ["0"]).startswith("no longer active")
