"""Control groups: nothing in one escapes its end, and nothing else is touched."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.system import cgroups
from postroom.testing import wait_until
from tests.groups import needs_groups


@pytest.fixture
def mark() -> Iterator[str]:
    made = f"/base:{uuid.uuid4().hex}"
    yield made
    cgroups.end(cgroups.path_of(made), made)


@needs_groups
def test_all_that_is_in_a_group_is_ended_and_the_group_removed(mark: str) -> None:
    path = cgroups.make(mark)
    hides = "(env -i setsid sleep 600 &) ; sleep 600"
    process = subprocess.Popen(
        ["bash", "-c", hides], preexec_fn=lambda: cgroups.enter(path), process_group=0
    )
    wait_until(lambda: len(cgroups.members(path)) >= 2)
    assert cgroups.end(path, mark) >= 2
    assert process.wait() == -signal.SIGKILL
    assert not os.path.exists(path)


@needs_groups
def test_an_empty_group_goes_quietly_and_is_made_again_by_who_enters(mark: str) -> None:
    path = cgroups.make(mark)
    assert cgroups.end(path, mark) == 0
    assert not os.path.exists(path)
    subprocess.run(["true"], preexec_fn=lambda: cgroups.enter(path), check=True)
    assert os.path.isdir(path)


def test_only_what_bears_the_name_of_the_session_is_touched(tmp_path: Path, mark: str) -> None:
    for name in ("other", os.path.basename(cgroups.path_of("another mark"))):
        (tmp_path / name / "below").mkdir(parents=True)
        assert cgroups.end(str(tmp_path / name), mark) == 0
        assert (tmp_path / name / "below").is_dir()
    assert cgroups.end("", mark) == 0


def test_where_no_group_can_be_had_it_goes_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cgroups, "own", lambda: "")
    assert cgroups.make("mark") == ""
    monkeypatch.setattr(cgroups, "own", lambda: str(tmp_path))  # a folder, but no group
    assert cgroups.make("mark") == ""
    assert os.listdir(tmp_path) == []
    cgroups.enter("")
    cgroups.enter(f"{tmp_path}/gone/for/good")


def test_a_group_that_cannot_be_listed_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cgroups.members(str(tmp_path / "removed")) == []

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(OSError, match="Too many"):
        cgroups.members(str(tmp_path))
