"""What is said of a large file's memory changes how fast it is, and never what it holds."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from postroom.jobs import Job
from postroom.store.files import LocalFiles
from postroom.system import page_cache
from postroom.system.page_cache import LARGE, MOST_FILES, Spares
from tests.in_one_process import in_one_process, with_worker

KERNELS = f"""
import numpy as np

def total(x):
    return float(x.sum())

def grow(n):
    return np.full({LARGE // 8}, float(n))
"""


def in_memory(path: str | Path) -> int:
    """How many pages of a file the page cache has."""
    size = os.path.getsize(path)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    fd = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    assert libc.mincore(address, size, pages) == 0
    libc.munmap(address, size)
    return sum(byte & 1 for byte in pages.raw)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip("temporary files are in memory only: TMPDIR=/var/tmp would do")
    return tmp_path


@pytest.fixture
def files() -> LocalFiles:
    return LocalFiles()


def test_a_large_file_takes_the_memory_of_one_that_was_let_go(
    disk: Path, files: LocalFiles
) -> None:
    content = os.urandom(LARGE)
    old, new, kept = (str(disk / name) for name in ("old", "new", "kept"))
    for path in (old, kept):
        files.write_new(path, [content], sync=True)
    files.let_go(old)
    assert in_memory(old) and in_memory(kept)
    files.write_new(str(disk / "small"), [b"x"])
    assert in_memory(old), "only a large file is worth it"
    files.write_new(new, [content])
    assert not in_memory(old)
    assert in_memory(kept) and in_memory(new)
    assert Path(old).read_bytes() == content


@pytest.mark.parametrize("recycled", [False, True])
def test_a_large_file_that_is_read_takes_the_memory_of_one_that_was_let_go(
    disk: Path, files: LocalFiles, recycled: bool
) -> None:
    old, new = (str(disk / name) for name in ("old", "new"))
    for path in (old, new):
        files.write_new(path, [bytes(LARGE)], sync=True)
    files.let_go(old)
    view = files.view(new, 1 << 30, recycled=recycled)
    assert len(view) == LARGE
    assert not in_memory(old)


def test_no_more_is_taken_than_is_needed(disk: Path, files: LocalFiles) -> None:
    paths = [str(disk / str(number)) for number in range(3)]
    for path in paths:
        files.write_new(path, [bytes(LARGE)], sync=True)
    for path in paths:
        files.let_go(path)
    files.write_new(str(disk / "new"), [bytes(2 * LARGE)])
    assert [in_memory(path) > 0 for path in paths] == [False, False, True]


def test_what_somebody_reads_or_the_disk_does_not_have_stays(disk: Path, files: LocalFiles) -> None:
    content = os.urandom(LARGE)
    read, fresh, gone = (str(disk / name) for name in ("read", "fresh", "gone"))
    files.write_new(read, [content], sync=True)
    files.write_new(fresh, [content])
    view = files.view(read, 1 << 30)
    assert bytes(view) == content
    for path in (read, fresh, gone):
        files.let_go(path)
    files.write_new(str(disk / "new"), [bytes(4 * LARGE)])
    assert in_memory(read)
    assert bytes(view) == content == Path(fresh).read_bytes()


def test_a_file_is_brought_to_the_disk_without_waiting(disk: Path, files: LocalFiles) -> None:
    files.save_soon(str(disk / "absent"))
    files.write_new(str(disk / "there"), [bytes(LARGE)])
    files.save_soon(str(disk / "there"))


def test_only_so_many_files_are_remembered(disk: Path, files: LocalFiles) -> None:
    for number in range(10 * MOST_FILES):
        files.let_go(str(disk / str(number)))
    assert len(files._pages._idle) == MOST_FILES


def test_a_large_argument_is_in_nobodys_way_when_its_job_is_done(tmp_path: Path) -> None:
    x = np.ones(LARGE // 8)
    with in_one_process(tmp_path, KERNELS) as room:
        for _ in range(3):
            pool = room.master.submit_all([Job("kernels:total", x=x)])
            (parcel,) = map(str, Path(room.base.run_folder(pool.run)).glob("*.npz"))
            room.finish(pool)
            assert parcel not in Path("/proc/self/maps").read_text()
            assert parcel in room.master._files._pages._idle  # type: ignore[attr-defined]
            assert pool.results() == [LARGE // 8]
        again = room.master.resume(pool.run)
        np.testing.assert_array_equal(again.jobs[0].arguments["x"], x)


class TestSpares:
    def test_the_next_file_is_written_over_the_one_that_nobody_needs(self, tmp_path: Path) -> None:
        files = LocalFiles()
        first, spare, second = (str(tmp_path / name) for name in ("first", "spare", "second"))
        files.write_new(first, [b"1" * LARGE])
        inode = os.stat(first).st_ino
        files.recycle(first, spare)
        assert os.listdir(tmp_path) == ["spare"]
        files.write_new(second, [b"2" * (LARGE - 7)])
        assert os.listdir(tmp_path) == ["second"]
        assert os.stat(second).st_ino == inode
        assert Path(second).read_bytes() == b"2" * (LARGE - 7)

    def test_small_files_are_new(self, tmp_path: Path) -> None:
        files = LocalFiles()
        files.write_new(str(tmp_path / "a"), [b"1" * LARGE])
        files.recycle(str(tmp_path / "a"), str(tmp_path / "spare"))
        files.write_new(str(tmp_path / "b"), [b"2"])
        assert sorted(os.listdir(tmp_path)) == ["b", "spare"]
        files.remove_spares()
        assert os.listdir(tmp_path) == ["b"]

    def test_only_so_many_bytes_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(page_cache, "MOST_SPARE_BYTES", 2 * LARGE)
        files = LocalFiles()
        for name in "abc":
            files.write_new(str(tmp_path / name), [b"1" * LARGE])
        for name in "abc":
            files.recycle(str(tmp_path / name), str(tmp_path / f"spare {name}"))
        assert sorted(os.listdir(tmp_path)) == ["spare b", "spare c"]

    def test_a_fork_writes_over_nothing_of_its_parent(self, tmp_path: Path) -> None:
        files = LocalFiles()
        files.write_new(str(tmp_path / "a"), [b"1" * LARGE])
        files.recycle(str(tmp_path / "a"), str(tmp_path / "spare"))
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                files.write_new(str(tmp_path / "child"), [b"2" * LARGE])
                files.remove_spares()
            os._exit(0)
        os.waitpid(pid, 0)
        assert sorted(os.listdir(tmp_path)) == ["child", "spare"]

    def test_a_full_disk_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = LocalFiles()
        files.write_new(str(tmp_path / "a"), [b"1" * LARGE])
        files.recycle(str(tmp_path / "a"), str(tmp_path / "spare"))

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("postroom.store.files._write_all", fail)
        with pytest.raises(OSError, match="No space"):
            files.write_new(str(tmp_path / "b"), [b"2" * LARGE])
        assert os.listdir(tmp_path) == []


class TestLockedMaps:
    @staticmethod
    def written_over(files: LocalFiles, tmp_path: Path) -> bool:
        """Whether the next file is written over `old`."""
        inode = os.stat(tmp_path / "old").st_ino
        files.recycle(str(tmp_path / "old"), str(tmp_path / "spare"))
        files.write_new(str(tmp_path / "new"), [b"2" * LARGE])
        return os.stat(tmp_path / "new").st_ino == inode

    @pytest.fixture
    def files(self, tmp_path: Path) -> LocalFiles:
        made = LocalFiles()
        made.write_new(str(tmp_path / "old"), [b"1" * LARGE])
        return made

    def test_a_file_that_somebody_reads_is_not_written_over(
        self, tmp_path: Path, files: LocalFiles
    ) -> None:
        view = LocalFiles().view(str(tmp_path / "old"), LARGE, recycled=True)
        inode = os.stat(tmp_path / "old").st_ino
        assert not self.written_over(files, tmp_path)
        assert bytes(view) == b"1" * LARGE
        del view
        files.write_new(str(tmp_path / "next"), [b"3" * LARGE])
        assert os.stat(tmp_path / "next").st_ino == inode

    def test_one_that_is_mapped_is_passed_over(self, tmp_path: Path, files: LocalFiles) -> None:
        files.write_new(str(tmp_path / "free"), [b"3" * LARGE])
        view = files.view(str(tmp_path / "old"), LARGE, recycled=True)
        files.recycle(str(tmp_path / "old"), str(tmp_path / "spare"))
        inode = os.stat(tmp_path / "free").st_ino
        files.recycle(str(tmp_path / "free"), str(tmp_path / "other"))
        files.write_new(str(tmp_path / "new"), [b"2" * LARGE])
        assert os.stat(tmp_path / "new").st_ino == inode
        assert bytes(view) == b"1" * LARGE

    def test_an_array_on_it_keeps_it_as_it_is(self, tmp_path: Path, files: LocalFiles) -> None:
        array = np.frombuffer(files.view(str(tmp_path / "old"), LARGE, recycled=True), np.uint8)[5:]
        assert not self.written_over(files, tmp_path)
        assert array.tobytes() == b"1" * (LARGE - 5)

    def test_it_is_written_over_when_nobody_reads_it_any_more(
        self, tmp_path: Path, files: LocalFiles
    ) -> None:
        view = files.view(str(tmp_path / "old"), LARGE, recycled=True)
        del view
        assert self.written_over(files, tmp_path)

    def test_a_child_that_has_inherited_a_mapping_keeps_it_as_it_is(
        self, tmp_path: Path, files: LocalFiles
    ) -> None:
        view = files.view(str(tmp_path / "old"), LARGE, recycled=True)
        until, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(end)
            os.read(until, 1)
            os._exit(bytes(view) != b"1" * LARGE)
        del view
        try:
            assert not self.written_over(files, tmp_path)
        finally:
            os.close(end)
            os.close(until)
            assert os.waitpid(pid, 0)[1] == 0

    def test_a_child_of_the_writer_keeps_nobody_from_reading(
        self, tmp_path: Path, files: LocalFiles
    ) -> None:
        files.recycle(str(tmp_path / "old"), str(tmp_path / "spare"))
        until, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(end)
            os.read(until, 1)
            os._exit(0)
        try:
            files.write_new(str(tmp_path / "new"), [b"2" * LARGE])
            view = files.view(str(tmp_path / "new"), LARGE, recycled=True)
            assert bytes(view) == b"2" * LARGE
        finally:
            os.close(end)
            os.close(until)
            os.waitpid(pid, 0)

    def test_who_opened_it_before_it_lost_its_name_finds_it_gone(self, tmp_path: Path) -> None:
        spares, path = Spares(), str(tmp_path / "old")
        Path(path).write_bytes(b"1" * LARGE)
        spares.add(path)
        spare = spares.take(LARGE, path)
        assert spare is not None
        with pytest.raises(FileNotFoundError):
            LocalFiles().view(path, LARGE, recycled=True)
        spare.close()
        assert bytes(LocalFiles().view(path, LARGE, recycled=True)) == b"1" * LARGE

    def test_few_are_tried_where_a_kernel_keeps_what_it_gets(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(page_cache, "MOST_TRIED", 2)
        files = LocalFiles()
        kept = []
        for name in "abc":
            files.write_new(str(tmp_path / name), [b"1" * LARGE])
            kept.append(files.view(str(tmp_path / name), LARGE, recycled=True))
            files.recycle(str(tmp_path / name), str(tmp_path / f"spare {name}"))
        kept.pop()
        files.write_new(str(tmp_path / "d"), [b"2" * LARGE])
        assert sorted(os.listdir(tmp_path)) == ["d", "spare a", "spare b", "spare c"]
        files.write_new(str(tmp_path / "e"), [b"2" * LARGE])  # it begins with the third
        assert sorted(os.listdir(tmp_path)) == ["d", "e", "spare a", "spare b"]

    def test_a_kernel_that_keeps_much_does_not_use_up_descriptors(
        self, tmp_path: Path, files: LocalFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(page_cache, "MOST_MAPPED", 2)
        before = len(os.listdir("/proc/self/fd"))
        kept = [files.view(str(tmp_path / "old"), LARGE, recycled=True) for _ in range(5)]
        assert len(os.listdir("/proc/self/fd")) == before + 2
        assert [bytes(view) for view in kept] == [b"1" * LARGE] * 5
        kept[:2] = []
        assert len(os.listdir("/proc/self/fd")) == before
        assert self.written_over(files, tmp_path)
        assert bytes(kept[-1]) == b"1" * LARGE

    def test_spares_that_somebody_has_cleaned_away_are_written_anew(
        self, tmp_path: Path, files: LocalFiles
    ) -> None:
        before = len(os.listdir("/proc/self/fd"))
        files.recycle(str(tmp_path / "old"), str(tmp_path / "spare"))
        (tmp_path / "spare").unlink()
        files.write_new(str(tmp_path / "new"), [b"2" * LARGE])
        assert (tmp_path / "new").read_bytes() == b"2" * LARGE
        assert len(os.listdir("/proc/self/fd")) == before


def test_small_arguments_and_those_of_waiting_jobs_are_left_alone(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS, inboxes=0) as room:
        pool = room.master.submit_all([Job("kernels:total", x=np.ones(LARGE // 8))])
        room.master.step(1.0)
        assert not room.master._files._pages._idle  # type: ignore[attr-defined]
    with in_one_process(tmp_path, KERNELS) as room:
        room.finish(room.master.resume(pool.run))
        room.run([Job("kernels:total", x=np.ones(10))])
        assert len(room.master._files._pages._idle) == 1  # type: ignore[attr-defined]


def test_a_result_that_was_handed_out_makes_room_unless_it_is_held(
    disk: Path,
) -> None:
    with in_one_process(disk, KERNELS) as room:
        pool = room.run([Job("kernels:grow", n=n) for n in range(5)])
        paths = [room.base.result(pool.run, n) for n in range(5)]
        for path in paths:
            room.files.sync_file(path)
        held = pool[1].result()
        for n in (0, 2, 3, 4):
            assert pool[n].result()[0] == n
        assert [in_memory(path) > 0 for path in paths] == [False, True, False, True, True]
        assert held[0] == 1
        assert [result[-1] for result in pool.results()] == [0, 1, 2, 3, 4]


def test_a_worker_has_large_files_brought_to_the_disk_when_its_letter_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    monkeypatch.setattr(LocalFiles, "save_soon", lambda _, path: saved.append(path))
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.master.submit_all(
            [
                Job("kernels:total", x=np.ones(LARGE // 8)),
                Job("kernels:grow", n=1),
                Job("kernels:total", x=np.ones(10)),
            ]
        )
        room.finish(pool)
        parcel = str(min(Path(room.base.run_folder(pool.run)).glob("*.npz")))
        assert set(saved) == {parcel, room.base.result(pool.run, 1)}


class TestLeftForOthers:
    """What one process leaves, another writes over."""

    @pytest.fixture
    def old(self, tmp_path: Path) -> str:
        path = tmp_path / "old"
        path.write_bytes(b"1" * LARGE)
        return str(path)

    @staticmethod
    def write(tmp_path: Path, prefix: str = "spare.run.") -> int:
        path = str(tmp_path / "new")
        LocalFiles().write_new(path, [b"2" * LARGE], spares=(str(tmp_path), prefix))
        assert Path(path).read_bytes() == b"2" * LARGE
        return os.stat(path).st_ino

    def test_the_next_large_file_of_another_process_is_written_over_it(
        self, tmp_path: Path, old: str
    ) -> None:
        inode = os.stat(old).st_ino
        LocalFiles().hand_on(old, str(tmp_path / "spare.run.1"))
        assert os.listdir(tmp_path) == ["spare.run.1"]
        assert self.write(tmp_path) == inode
        assert os.listdir(tmp_path) == ["new"]

    def test_another_run_does_not_use_it(self, tmp_path: Path, old: str) -> None:
        """After a power loss it could find an old result of the same number."""
        inode = os.stat(old).st_ino
        LocalFiles().hand_on(old, str(tmp_path / "spare.run.1"))
        assert self.write(tmp_path, "spare.other.") != inode

    def test_an_array_that_somebody_keeps_never_changes(self, tmp_path: Path, old: str) -> None:
        kept = np.frombuffer(LocalFiles().view(old, LARGE, recycled=True), np.uint8)
        inode = os.stat(old).st_ino
        LocalFiles().hand_on(old, str(tmp_path / "spare.run.1"))
        assert self.write(tmp_path) != inode
        assert kept.tobytes() == b"1" * LARGE
        (tmp_path / "new").unlink()
        del kept
        assert self.write(tmp_path) == inode, "it was left for later"

    def test_a_file_that_was_prepared_gives_its_name_to_it(self, tmp_path: Path, old: str) -> None:
        inode = os.stat(old).st_ino
        files, path = LocalFiles(), str(tmp_path / "prepared")
        files.hand_on(old, str(tmp_path / "spare.run.1"))
        files.prepare(path)
        files.write_new(path, [b"2" * LARGE], spares=(str(tmp_path), "spare.run."))
        assert os.stat(path).st_ino == inode
        assert Path(path).read_bytes() == b"2" * LARGE
        files.prepare(None)
        assert os.listdir(tmp_path) == []

    def test_small_files_and_those_that_are_too_many_are_removed(
        self, tmp_path: Path, old: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "small").write_bytes(b"1")
        LocalFiles().hand_on(str(tmp_path / "small"), str(tmp_path / "spare.run.0"))
        LocalFiles().hand_on(str(tmp_path / "absent"), str(tmp_path / "spare.run.0"))
        assert os.listdir(tmp_path) == ["old"]
        monkeypatch.setattr(page_cache, "MOST_LEFT", 0)
        LocalFiles().hand_on(old, str(tmp_path / "spare.run.1"))
        assert os.listdir(tmp_path) == []


def test_large_results_of_a_generator_are_written_over_when_they_were_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.jobs.REMOVE_BYTES", 1)
    with in_one_process(tmp_path, KERNELS) as room:
        with_worker(room)
        pool = room.master.start(Job("kernels:grow", n=n) for n in range(40))
        inodes, kept = set(), []
        for finished in pool.as_completed(60):
            inodes.add(os.stat(room.base.result(pool.run, finished.number)).st_ino)
            value = finished.result()
            assert (value == finished.number).all()
            if finished.number % 5 == 0:
                kept.append((finished.number, value))
            del value
        assert len(inodes) < 40, "no file was used again"
        assert not [name for name in os.listdir(room.base.tmp) if name.startswith("spare")]
        assert all((value == number).all() for number, value in kept)


def test_results_of_a_list_are_mapped_and_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.jobs.REMOVE_BYTES", 1)
    with in_one_process(tmp_path, KERNELS) as room:
        with_worker(room)
        pool = room.master.start([Job("kernels:grow", n=n) for n in range(20)])
        kept = [(done.number, done.result()) for done in pool.as_completed(60, keep=False)]
        assert all((value == number).all() for number, value in kept)
