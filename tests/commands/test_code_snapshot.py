"""Snapshots: what is copied, once, and what has changed since."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from postroom.commands.code_snapshot import SnapshotError, changes, take_snapshot


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("one\ntwo\n")
    (folder / "sub" / "new.py").write_text("untracked\n")
    (folder / "data.bin").write_bytes(b"\xff" * 100)
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    subprocess.run(["git", "add", "train.py", ".gitignore"], cwd=folder, check=True)
    return folder


def files(folder: str) -> list[str]:
    return sorted(
        os.path.relpath(f"{parent}/{name}", folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


def test_what_git_tracks_or_would_is_copied_and_what_it_ignores_is_not(source: Path) -> None:
    copy = take_snapshot(str(source), str(source / "out"))
    assert files(copy) == [".gitignore", "run.sh", "sub/new.py", "train.py"]
    assert os.access(f"{copy}/run.sh", os.X_OK)


def test_the_same_content_is_the_same_snapshot_and_another_is_another(source: Path) -> None:
    output = str(source / "out")
    first = take_snapshot(str(source), output)
    assert take_snapshot(str(source), output) == first
    (source / "train.py").write_text("changed\n")
    second = take_snapshot(str(source), output)
    assert second != first
    assert Path(first, "train.py").read_text() == "one\ntwo\n"
    assert sorted(os.listdir(source / "out" / ".snapshots")) == sorted(
        os.path.basename(os.path.dirname(copy)) for copy in (first, second)
    )


def test_without_git_all_but_hidden_files_are_copied(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a").write_text("")
    (folder / ".secret").write_text("")
    assert files(take_snapshot(str(folder), str(tmp_path / "out"))) == ["a"]


def test_too_much_is_refused_with_the_largest_named(source: Path) -> None:
    (source / "huge.txt").write_bytes(b"x" * 5000)
    with pytest.raises(SnapshotError, match=r"huge\.txt"):
        take_snapshot(str(source), str(source / "out"), most_bytes=4000)


def test_changes_since_are_shown_as_a_diff(source: Path) -> None:
    copy = take_snapshot(str(source), str(source / "out"))
    assert list(changes(copy)) == []
    (source / "train.py").write_text("one\nthree\n")
    (source / "sub" / "new.py").unlink()
    (source / "added.py").write_text("new\n")
    text = "".join(changes(copy))
    assert "-two\n+three\n" in text
    assert "-untracked" in text
    assert "+++ now/added.py" in text


def test_what_is_no_snapshot_says_so(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="--snapshot"):
        list(changes(str(tmp_path / "files")))
