from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.errors import BadFileError
from postroom.store.files import MAP_FROM_BYTES, LocalFiles, _write_all
from postroom.testing import wait_until


@pytest.fixture
def files() -> LocalFiles:
    return LocalFiles()


def test_publishing_never_replaces(tmp_path: Path, files: LocalFiles) -> None:
    first, second, final = (str(tmp_path / name) for name in ("a", "b", "final"))
    files.write_new(first, [b"first"])
    files.write_new(second, [b"second"])
    assert files.publish(first, final)
    assert not files.publish(second, final)
    assert Path(final).read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["final"]


def test_a_link_that_worked_but_said_it_failed_counts_as_won(
    tmp_path: Path, files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, final = str(tmp_path / "a"), str(tmp_path / "final")
    files.write_new(temporary, [b"x"])
    real = os.link

    def lying(source: str, target: str) -> None:
        real(source, target)
        raise OSError(errno.EIO, "as on a network filesystem")

    monkeypatch.setattr(os, "link", lying)
    assert files.publish(temporary, final)
    assert os.listdir(tmp_path) == ["final"]


def test_a_failed_link_leaves_nothing_behind(tmp_path: Path, files: LocalFiles) -> None:
    files.write_new(str(tmp_path / "a"), [b"x"])
    with pytest.raises(FileNotFoundError):
        files.publish(str(tmp_path / "a"), str(tmp_path / "missing" / "final"))
    assert os.listdir(tmp_path) == []


def test_many_buffers_and_short_writes_arrive_whole(
    tmp_path: Path, files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [bytes([n % 256]) * (n % 7) for n in range(3000)]
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: real(fd, [bytes(views[0])[:3]]))
    path = str(tmp_path / "x")
    files.write_new(path, chunks)
    assert Path(path).read_bytes() == b"".join(chunks)


def test_a_file_that_could_not_be_written_is_removed(
    tmp_path: Path, files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, views: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="full"):
        files.write_new(str(tmp_path / "x"), [b"data"])
    assert os.listdir(tmp_path) == []


def test_nothing_is_read_through_a_symlink(tmp_path: Path, files: LocalFiles) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    for read in (files.tail, files.read, files.view):
        with pytest.raises(BadFileError, match="symbolic link"):
            read(str(tmp_path / "link"), 100)
    with pytest.raises(BadFileError):
        files.open_box(str(tmp_path / "link"))


def test_a_fifo_does_not_hang_the_reader(tmp_path: Path, files: LocalFiles) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadFileError, match="not a regular file"):
        files.read(str(tmp_path / "fifo"), 100)


def test_a_folder_is_not_read_as_a_file(tmp_path: Path, files: LocalFiles) -> None:
    with pytest.raises(BadFileError, match="not a regular file"):
        files.read(str(tmp_path), 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_read(tmp_path: Path, files: LocalFiles) -> None:
    path = tmp_path / "theirs"
    path.write_bytes(b"x")
    os.chown(path, 12345, 12345)
    with pytest.raises(BadFileError, match="belongs to user 12345"):
        files.read(str(path), 100)


def test_a_file_over_the_limit_is_not_read(tmp_path: Path, files: LocalFiles) -> None:
    (tmp_path / "big").write_bytes(b"x" * 101)
    with pytest.raises(BadFileError, match="at most 100"):
        files.read(str(tmp_path / "big"), 100)


def test_large_files_are_mapped_without_keeping_descriptors(
    tmp_path: Path, files: LocalFiles
) -> None:
    path = str(tmp_path / "large")
    content = os.urandom(MAP_FROM_BYTES)
    files.write_new(path, [content])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    before = len(os.listdir("/proc/self/fd"))
    views = [files.view(path, 1 << 30) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before <= limit
    assert all(bytes(view) == content for view in views)


def test_a_mapping_ends_with_its_last_view(tmp_path: Path, files: LocalFiles) -> None:
    path = str(tmp_path / "large")
    files.write_new(path, [bytes(MAP_FROM_BYTES)])
    view = files.view(path, 1 << 30)
    assert path in Path("/proc/self/maps").read_text()
    del view
    gc.collect()
    assert path not in Path("/proc/self/maps").read_text()


def test_a_lock_has_one_holder_and_shared_ones_exclude_it(
    tmp_path: Path, files: LocalFiles
) -> None:
    path = str(tmp_path / "lock")
    lock = files.try_lock(path)
    assert lock is not None
    assert files.try_lock(path) is None
    lock.release()
    lock.release()
    one, other = files.try_lock(path, shared=True), files.try_lock(path, shared=True)
    assert one is not None and other is not None
    assert files.try_lock(path) is None


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    """multiprocessing's children must not keep a dead Master's base locked."""
    path = str(tmp_path / "lock")
    script = f"""
import os, sys
from postroom.store.files import LocalFiles
lock = LocalFiles().try_lock({path!r})
if os.fork() == 0:
    sys.stdin.readline()
    os._exit(0)
print("forked", flush=True)
os._exit(0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"forked\n"
    process.wait()
    # The child lives on, and lets go as soon as it is first given the processor.
    wait_until(lambda: LocalFiles().try_lock(path), what="the lock is free")
    process.stdin.close()
    process.stdout.close()


def test_a_box_that_was_taken_down_says_so(tmp_path: Path, files: LocalFiles) -> None:
    path = str(tmp_path / "0.POOL")
    box = files.create_box(path)
    other = files.open_box(path)
    assert other is not None and not other.gone()
    files.remove(path)
    assert other.gone()
    assert files.open_box(path) is None
    box.close()


def test_writing_a_letter_does_nothing_to_the_box_after_its_last_byte(
    tmp_path: Path, files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast reader may have emptied the box before the writer's next system call."""
    path = str(tmp_path / "0.POOL")
    box = files.create_box(path)
    reader = files.open_box(path)
    assert reader is not None
    real = os.pwrite

    def and_emptied(fd: int, data: bytes, offset: int) -> int:
        written = real(fd, data, offset)
        reader.clear()
        return written

    monkeypatch.setattr(os, "pwrite", and_emptied)
    box.write(b"a letter")
    assert box.size() == 0


def test_nothing_is_written_for_empty_chunks(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    _write_all(fd, [b"", memoryview(b"")])
    os.close(fd)
    assert (tmp_path / "x").read_bytes() == b""


def test_what_is_done_ahead_changes_nothing_but_when(tmp_path: Path) -> None:
    files = LocalFiles()
    one, two, final = (str(tmp_path / name) for name in ("one", "two", "final"))
    files.prepare(one)
    assert Path(one).read_bytes() == b""
    files.write_new(one, [b"a", b"b"])
    assert files.publish(one, final)
    assert Path(final).read_bytes() == b"ab"
    files.prepare(two)
    assert sorted(os.listdir(tmp_path)) == ["final", "two"]
    files.write_new(str(tmp_path / "three"), [b"c"])  # another, as if nothing were prepared
    assert not files.publish(str(tmp_path / "three"), final)
    files.prepare(None)
    assert os.listdir(tmp_path) == ["final"]
    files.prepare(str(tmp_path / "absent" / "folder"))


def test_what_was_prepared_cannot_be_published_from_a_closed_outbox(tmp_path: Path) -> None:
    files = LocalFiles()
    outbox = tmp_path / "outbox"
    outbox.mkdir()
    files.prepare(f"{outbox}/one")
    outbox.rename(tmp_path / "trash")
    (tmp_path / "trash" / "one").unlink()
    files.write_new(f"{outbox}/one", [b"late"])
    with pytest.raises(FileNotFoundError):
        files.publish(f"{outbox}/one", str(tmp_path / "final"))
    assert not (tmp_path / "final").exists()


def test_a_fork_does_not_write_through_what_its_parent_prepared(tmp_path: Path) -> None:
    files, path = LocalFiles(), str(tmp_path / "next")
    files.prepare(path)
    pid = os.fork()
    if pid == 0:
        try:
            files.write_new(path, [b"the child's"])
        except FileExistsError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    files.write_new(path, [b"ours"])
    assert Path(path).read_bytes() == b"ours"


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_large_file_is_written_whole_in_pieces_of_every_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setattr("postroom.store.files.PIECE_S", -1.0 if is_slow else 1e9)
    files, chunks = LocalFiles(), [b"head", os.urandom(3 * MAP_FROM_BYTES), b"", b"tail" * 9999]
    for name in "abcd":
        files.write_new(str(tmp_path / name), chunks)
        assert (tmp_path / name).read_bytes() == b"".join(chunks)
