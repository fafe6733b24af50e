"""Snapshots: what is taken, that it stays as it was, and what an attempt leaves in its copy."""

from __future__ import annotations

import errno
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from postroom.commands.code_snapshot import (
    CodeSnapshot,
    SnapshotError,
    UnpackedSnapshot,
    changes,
    take_snapshot,
)
from postroom.queue.submission import rerun, submit
from postroom.store.base import Base, create_base
from postroom.store.job_ids import JobId
from tests.queue.kit import FILES, queue


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
    (folder / "link").symlink_to("train.py")
    os.link(folder / "train.py", folder / "twin.py")
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    subprocess.run(["git", "add", "train.py", ".gitignore"], cwd=folder, check=True)
    return folder


@pytest.fixture
def base(source: Path) -> Base:
    return create_base(source / "base")


NAMES = [".gitignore", "link", "run.sh", "sub/new.py", "train.py", "twin.py"]


def stored(source: Path, base: Base, **options: int) -> tuple[CodeSnapshot, str]:
    """A snapshot in a run, and its path there."""
    (job,) = queue(base, "a")
    with take_snapshot(str(source), base, **options) as snapshot:
        snapshot.put(FILES, base, job.run)
    return snapshot, base.code_snapshot(job.run, snapshot.name)


def unpack(path: str, name: str, place: Path, cwd: str = "") -> UnpackedSnapshot:
    copy = UnpackedSnapshot(path, name, str(place), f"{place}{cwd}")
    copy.unpack()
    return copy


def files(folder: Path) -> list[str]:
    return sorted(
        os.path.relpath(f"{parent}/{name}", folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


def test_what_git_tracks_or_would_is_taken_and_what_it_ignores_is_not(
    source: Path, base: Base, tmp_path: Path
) -> None:
    snapshot, path = stored(source, base)
    with tarfile.open(path) as archive:
        assert archive.getnames() == NAMES
    copy = tmp_path / "copy"
    unpack(path, snapshot.name, copy)
    assert files(copy) == NAMES
    assert os.access(copy / "run.sh", os.X_OK)
    assert os.readlink(copy / "link") == "train.py"
    assert (copy / "twin.py").read_text() == "one\ntwo\n"
    assert (copy / "train.py").stat().st_mtime == pytest.approx(
        (source / "train.py").stat().st_mtime
    )
    assert os.listdir(base.tmp) == []


def test_the_same_content_is_the_same_snapshot_and_another_is_another(
    source: Path, base: Base
) -> None:
    first, path = stored(source, base)
    (source / "train.py").touch()
    again, same = stored(source, base)
    assert (again.name, same) == (first.name, path)
    (source / "train.py").write_text("changed\n")
    second, _ = stored(source, base)
    assert second.name != first.name
    tars = [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".tar")]
    assert sorted(tars) == sorted(f"{one.name}.tar" for one in (first, second))


def test_names_that_are_no_text_are_taken_too(source: Path, base: Base, tmp_path: Path) -> None:
    Path(os.fsdecode(bytes(source) + b"/\xff.py")).write_text("x")
    snapshot, path = stored(source, base)
    unpack(path, snapshot.name, tmp_path / "copy")
    assert b"\xff.py" in os.listdir(bytes(tmp_path / "copy"))


def test_without_git_all_but_hidden_files_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a").write_text("")
    (folder / ".secret").write_text("")
    _, path = stored(folder, create_base(tmp_path / "base"))
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["a"]


def test_too_much_is_refused_with_the_largest_named(source: Path, base: Base) -> None:
    (source / "huge.txt").write_bytes(b"x" * 5000)
    with pytest.raises(SnapshotError, match=r"huge\.txt"):
        stored(source, base, most_bytes=4000)
    assert os.listdir(base.tmp) == []


def test_every_copy_is_as_submitted_whatever_was_written_into_others(
    source: Path, base: Base, tmp_path: Path
) -> None:
    snapshot, path = stored(source, base)
    for copy in (tmp_path / "first", tmp_path / "second"):
        unpack(path, snapshot.name, copy)
        assert (copy / "train.py").read_text() == "one\ntwo\n"
        with open(copy / "train.py", "r+") as file:
            file.write("THE")
        (copy / "sub" / "new.py").unlink()
    assert stored(source, base)[0].name == snapshot.name


def test_what_an_attempt_wrote_is_kept_of_its_copy(
    source: Path, base: Base, tmp_path: Path
) -> None:
    (source / "deep").mkdir()
    snapshot, path = stored(source, base)
    place = tmp_path / "copy"
    copy = unpack(path, snapshot.name, place, "/deep/empty")
    (place / "model.pt").write_text("weights")
    (place / "train.py").write_text("ONE\ntwo\n")
    (place / "deep" / "empty").rmdir()
    (place / "sub" / "__pycache__").mkdir()
    (place / "sub" / "__pycache__" / "new.pyc").write_text("")
    copy.prune()
    assert files(place) == ["model.pt", "train.py"]
    assert sorted(os.listdir(place)) == ["model.pt", "train.py"]
    untouched = unpack(path, snapshot.name, tmp_path / "untouched", "/deep")
    untouched.prune()
    assert not (tmp_path / "untouched").exists()


def test_a_change_that_hides_its_time_and_size_is_kept(
    source: Path, base: Base, tmp_path: Path
) -> None:
    snapshot, path = stored(source, base)
    place = tmp_path / "copy"
    copy = unpack(path, snapshot.name, place)
    (place / "run.sh").chmod(0o700)
    before = (place / "train.py").stat()
    (place / "other").write_text("THE\ntwo\n")
    os.utime(place / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(place / "other", place / "train.py")
    copy.prune()
    assert files(place) == ["run.sh", "train.py"]


def test_what_a_link_leads_to_is_not_cleared_up(source: Path, base: Base, tmp_path: Path) -> None:
    snapshot, path = stored(source, base)
    place, elsewhere = tmp_path / "copy", tmp_path / "elsewhere"
    copy = unpack(path, snapshot.name, place)
    elsewhere.mkdir()
    (elsewhere / "__pycache__").mkdir()
    (place / "sub" / "new.py").unlink()
    (place / "sub").rmdir()
    (place / "sub").symlink_to(elsewhere)
    copy.prune()
    assert (elsewhere / "__pycache__").exists()
    assert os.listdir(place) == ["sub"]


def test_a_snapshot_that_was_changed_is_damaged_or_is_missing_is_not_used(
    source: Path, base: Base, tmp_path: Path
) -> None:
    snapshot, path = stored(source, base)
    whole = Path(path).read_bytes()
    for content, words in (
        (whole.replace(b"untracked", b"UNTRACKED"), "was changed"),
        (whole[:700], "is damaged|was changed"),
        (b"", "is damaged"),
    ):
        Path(path).write_bytes(content)
        with pytest.raises(SnapshotError, match=words):
            unpack(path, snapshot.name, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
    stored(source, base)
    unpack(path, snapshot.name, tmp_path / "submitted again")
    os.unlink(path)
    with pytest.raises(SnapshotError, match="is missing"):
        unpack(path, snapshot.name, tmp_path / "copy")


def test_a_copy_that_could_not_be_finished_leaves_nothing_behind(
    source: Path, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    snapshot, path = stored(source, base)
    with monkeypatch.context() as full, pytest.raises(OSError, match="No space"):
        full.setattr(os, "utime", fail)
        unpack(path, snapshot.name, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    unpack(path, snapshot.name, tmp_path / "copy")


def test_a_job_that_is_queued_again_brings_its_snapshot_into_its_new_run(
    source: Path, base: Base
) -> None:
    from postroom.commands.spec import CommandSpec

    with take_snapshot(str(source), base) as snapshot:
        spec = CommandSpec("true", cwd=str(source))
        (job,) = submit(FILES, base, [spec], project="p", snapshot=snapshot)
    again = spec.but(snapshot=snapshot.name, source=str(source), cwd="/gone")
    (new,) = rerun(FILES, base, [(job, again, "q")])
    assert new.run != job.run
    assert os.path.samefile(
        base.code_snapshot(job.run, snapshot.name), base.code_snapshot(new.run, snapshot.name)
    )
    (same,) = rerun(FILES, base, [(job, again, "p")])
    assert same.run == job.run and os.listdir(base.tmp) == []
    os.unlink(base.code_snapshot(job.run, snapshot.name))
    with pytest.raises(SnapshotError, match="is missing"):
        rerun(FILES, base, [(JobId(job.run, 0), again, "q")])


def test_changes_since_are_shown_as_a_diff(source: Path, base: Base) -> None:
    _, path = stored(source, base)
    assert list(changes(path, str(source))) == []
    (source / "train.py").write_text("one\nthree\n")
    (source / "sub" / "new.py").unlink()
    (source / "added.py").write_text("new\n")
    (source / "run.sh").write_bytes(b"\xff")
    text = "".join(changes(path, str(source)))
    assert "-two\n+three\n" in text
    assert "-untracked" in text
    assert "+++ now/added.py" in text
    assert "binary files snapshot/run.sh and now/run.sh differ" in text
    os.unlink(path)
    with pytest.raises(SnapshotError, match="cannot be read"):
        list(changes(path, str(source)))
