"""Full disks, too few descriptors, a base that is removed: blocked or said, never lost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from postroom import Job, testing
from postroom.errors import BaseFolderError
from postroom.store import files
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.snapshot import snapshot
from postroom.testing import RealSessions, wait_until
from tests.in_one_process import in_one_process

from .conftest import drive

ROOT = Path(__file__).parent.parent.parent
JOBS = 15
SIZE = 40_000
PAGE = 4096


def mounted(folder: Path, options: str) -> Path:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small disk needs the right to mount: {done.stderr.strip()}")
    return folder


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of its own, with the options that the test asks for."""
    folder = mounted(tmp_path / "disk", request.param)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def sessions(tmp_path: Path, disk: Path) -> Iterator[RealSessions]:
    """RealSessions on a base on that disk."""
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(Path(__file__).with_name("kernels.py"), project)
    with testing.sessions(disk / "base", import_folder=project) as opened:
        yield opened


def blobs() -> list[Job]:
    return [Job("kernels:blob", size=SIZE, number=n) for n in range(JOBS)]


def right() -> list[bytes]:
    return [bytes([n % 251]) * SIZE for n in range(JOBS)]


def listed(sessions: RealSessions) -> list[dict[str, object]]:
    """What `agent.py list` says."""
    command = [sys.executable, "agent.py", "list", sessions.base.root, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    agents: list[dict[str, object]] = json.loads(done.stdout)
    return agents


@pytest.mark.parametrize("disk", ["size=8m"], indirect=True)
@pytest.mark.parametrize("made", [iter, list])
def test_a_window_larger_than_the_disk_leaves_room_for_results(
    disk: Path, made: Callable[[Iterator[Job]], Iterable[Job]]
) -> None:
    kernel = "import numpy\ndef big(x):\n    return numpy.full(10_000, x[0])\n"
    with in_one_process(disk, kernel) as room:
        sizes = [1 << 16] * 9 + [1 << 19] * 3  # larger than those before them
        jobs = (Job("kernels:big", x=np.full(size, n)) for n, size in enumerate(sizes))
        pool = room.master.start(made(jobs))
        for _ in room.master.rounds(pool, timeout_s=0.5):  # nobody works yet: the disk fills up
            pass
        assert 0 < len(pool.jobs) < len(sizes)
        room.finish(pool)
        assert [int(one[0]) for one in pool.results()] == list(range(12))


@pytest.mark.parametrize("disk", ["size=4m"], indirect=True)
def test_a_file_larger_than_the_disk_does_not_fill_it_first(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "allocate", lambda fd, size: pytest.fail("it takes what is left"))
    with pytest.raises(OSError, match="No space left"):
        LocalFiles().write_new(f"{disk}/result", [bytes(5 << 20)])
    assert os.listdir(disk) == []


@pytest.mark.parametrize("disk", ["size=4m"], indirect=True)
def test_jobs_that_will_not_fit_are_refused_with_figures(disk: Path) -> None:
    with in_one_process(disk, "def size(x):\n    return len(x)\n") as room:
        with pytest.raises(BaseFolderError, match=r"need 8 MiB, and [0-9.]+ MiB are free") as told:
            room.master.run([Job("kernels:size", x=np.zeros(1 << 20))])
        assert "kept for results" in str(told.value) and "postroom clean" in str(told.value)
        assert room.run([Job("kernels:size", x=np.zeros(10))]).results() == [10]


@pytest.mark.parametrize("disk", ["size=1m"], indirect=True)
def test_a_full_disk_blocks_and_says_so_and_then_all_is_done(
    sessions: RealSessions, disk: Path
) -> None:
    sessions.start()
    with sessions.master() as master:
        pool = master.submit_all(blobs())
        filler = disk / "filler"
        fill(filler, leave=6 * PAGE)  # enough for a letter, too little for a result
        drive(master, lambda: snapshot(sessions.base).agents[0].state == "blocked", what="blocked")
        assert listed(sessions)[0]["state"] == "blocked"
        assert pool.n_done == 0
        filler.unlink()
        assert pool.wait(60).results() == right()


def fill(path: Path, *, leave: int) -> None:
    """Fill a disk but for so many bytes."""
    with open(path, "wb", buffering=0) as file:
        room_left = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_bsize - leave
        file.write(b"x" * room_left)


@pytest.mark.parametrize("disk", ["size=4m,nr_inodes=100"], indirect=True)
def test_a_disk_without_inodes_blocks_and_then_all_is_done(
    sessions: RealSessions, disk: Path
) -> None:
    sessions.start()
    fillers = []
    with sessions.master() as master:
        pool = master.submit_all(blobs())
        drive(master, lambda: master.acting)
        with pytest.raises(OSError, match="No space left"):
            while True:
                filler = disk / f"filler-{len(fillers)}"
                filler.touch()
                fillers.append(filler)
        drive(master, lambda: snapshot(sessions.base).agents[0].state == "blocked", what="blocked")
        for filler in fillers:
            filler.unlink()
        assert pool.wait(60).results() == right()


@pytest.mark.parametrize("disk", ["size=1m"], indirect=True)
def test_a_full_disk_at_submit_is_one_sentence_and_nothing_is_handed_in(
    sessions: RealSessions, disk: Path
) -> None:
    with sessions.master() as master:
        fill(disk / "filler", leave=4096)
        with pytest.raises(
            BaseFolderError,
            match=r"cannot submit jobs .* need 27 KiB, and .* free .*: free some space",
        ):
            master.submit_all(Job("kernels:double", x=bytes(9000)) for _ in range(3))
        assert os.listdir(sessions.base.job_pool) == []
        (disk / "filler").unlink()
        assert len(master.submit_all([Job("kernels:double", x=1)])) == 1


# The folders and results of 102 jobs take nearly 1 MB: more than that must fit when it is freed.
@pytest.mark.parametrize("disk", ["size=4m"], indirect=True)
def test_a_batch_on_a_full_disk_waits_says_so_and_goes_on(disk: Path, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    waits = f"touch {begun}; until [ -e {go} ]; do sleep 0.02; done; test"
    jobs = "".join(f"{waits} {n} -gt 0\n" for n in (1, 2))
    batch = subprocess.Popen(
        [sys.executable, "-m", "postroom", "run", "-", "--gpus", "0", "--output-dir", disk / "out"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert batch.stdin is not None and batch.stderr is not None
    batch.stdin.write(jobs)
    batch.stdin.flush()
    wait_until(begun.exists, what="the first job")
    fill(disk / "filler", leave=0)
    assert "is full: free some space on it" in batch.stderr.readline()
    batch.stdin.write("true\n" * 100)  # there is no room for these
    batch.stdin.close()
    (disk / "filler").unlink()
    assert "it goes on" in batch.stderr.readline()
    go.touch()
    said = batch.stderr.read()
    assert batch.wait(60) == 0 and "102 ok, 0 failed" in said, said
    assert batch.stdout is not None
    batch.stdout.close()
    batch.stderr.close()


@pytest.mark.parametrize("disk", ["size=1m"], indirect=True)
def test_a_scheduler_on_a_full_disk_says_so_and_goes_on(disk: Path) -> None:
    base = create_base(disk / "base")
    fill(disk / "filler", leave=0)
    command = [sys.executable, "-m", "postroom", "master", base.root]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as master:
        assert master.stderr is not None
        assert master.stderr.readline().startswith("scheduler of")
        assert "is full: free some space on it" in master.stderr.readline()
        (disk / "filler").unlink()
        assert "it goes on" in master.stderr.readline()
        assert "active" in master.stderr.readline()
        master.terminate()


@pytest.mark.parametrize("disk", ["size=1m"], indirect=True)
def test_a_session_on_a_full_disk_can_be_stopped(sessions: RealSessions, disk: Path) -> None:
    sessions.start()
    with sessions.master() as master:
        master.submit_all(blobs())
        fill(disk / "filler", leave=6 * PAGE)
        drive(master, lambda: snapshot(sessions.base).agents[0].state == "blocked", what="blocked")
    assert sessions.stop() == 0


@pytest.mark.parametrize("disk", ["size=4m"], indirect=True)
def test_a_read_only_base_is_refused_in_a_sentence_and_works_again_later(
    sessions: RealSessions, disk: Path
) -> None:
    with sessions.master() as master:
        run = master.submit_all(blobs()).run
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(BaseFolderError, match="is read-only: make it writable"):
        sessions.master()
    sessions.start(wait=False)
    assert sessions.guardians["0"].wait(60) == 2
    assert "is read-only: make it writable" in Path(sessions.words("0")).read_text()
    assert "Traceback" not in Path(sessions.words("0")).read_text()
    assert listed(sessions) == []
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    sessions.start()
    with sessions.master() as master:
        assert master.resume(run).wait(60).results() == right()


@pytest.mark.parametrize("disk", ["size=4m"], indirect=True)
def test_a_disk_that_turns_read_only_under_a_worker_blocks_it_until_it_turns_back(
    sessions: RealSessions,
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("a disk in use cannot be remounted; strace can say the same, and is missing")
    sessions.start()
    changing = "openat,linkat,link,rename,unlink,pwrite64,ftruncate"
    strace = subprocess.Popen(
        [
            *("strace", "-f", "-p", str(sessions.worker()), "-o", "/dev/null"),
            *("-e", f"trace={changing}", "-e", f"inject={changing}:error=EROFS"),
        ],
        stderr=subprocess.PIPE,
    )
    assert strace.stderr is not None
    assert b"attached" in strace.stderr.readline()
    try:
        with sessions.master() as master:
            pool = master.submit_all(blobs())
            drive(
                master, lambda: snapshot(sessions.base).agents[0].state != "idle", what="a letter"
            )
            for _ in range(10):
                drive(master, lambda: True)
            assert not pool.done
            strace.send_signal(signal.SIGINT)  # it detaches, and the disk is as before
            strace.wait(60)
            assert pool.wait(60).results() == right()
    finally:
        strace.kill()
        strace.wait()


@pytest.mark.parametrize("disk", ["size=64m"], indirect=True)
def test_64_open_files_are_enough(sessions: RealSessions) -> None:
    guardian = sessions.start(wait=False)
    resource.prlimit(guardian, resource.RLIMIT_NOFILE, (64, 64))
    sessions.wait_until(sessions.ready)
    script = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from postroom import Job, Master
with Master(sys.argv[1], import_folder=sys.argv[2]) as master:
    jobs = [Job("kernels:blob", size=300_000, number=n) for n in range(100)]
    pool = master.run(jobs)
    kept = pool.results()
    assert kept == [bytes([n % 251]) * 300_000 for n in range(100)]
    counted = master.run([Job("kernels:open_files") for _ in range(300)])
    print(max(counted.results()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, sessions.base.root, str(sessions.import_folder)],
        cwd=ROOT,
        env=sessions.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert int(done.stdout) < 40


@pytest.mark.parametrize("disk", ["size=4m"], indirect=True)
@pytest.mark.parametrize("busy", [True, False], ids=["at work", "idle"])
def test_a_base_that_is_removed_is_said_and_every_process_ends(
    sessions: RealSessions, tmp_path: Path, busy: bool
) -> None:
    sessions.start()
    never = str(tmp_path / "never")
    with sessions.master() as master:
        job = Job("kernels:wait_for", path=never) if busy else Job("kernels:double", x=1)
        pool = master.submit_all([job])
        if busy:
            drive(master, lambda: snapshot(sessions.base).agents[0].state == "running")
        else:
            pool.wait()
            pool = master.submit_all([Job("kernels:double", x=2)])
        shutil.rmtree(sessions.base.root)
        with pytest.raises(BaseFolderError, match="was removed"):
            pool.wait(60)
        assert not pool.done
        assert sessions.guardians["0"].wait(60) == 2
    assert "was removed" in Path(sessions.words("0")).read_text()
    assert "Traceback" not in Path(sessions.words("0")).read_text()
    assert sessions.processes("0") == []


@pytest.mark.parametrize("disk", ["size=4m"], indirect=True)
def test_work_goes_on_when_the_log_cannot_be_written(sessions: RealSessions) -> None:
    for path in (sessions.base.log, sessions.base.events):
        os.mkdir(path)
    sessions.start()
    with sessions.master() as master:
        assert master.run(blobs()).results() == right()


@pytest.mark.parametrize("disk", ["size=4m"], indirect=True)
def test_a_mailbox_that_is_removed_by_hand_comes_back(sessions: RealSessions) -> None:
    sessions.start()
    os.unlink(sessions.base.mailbox("0"))
    sessions.wait_until(sessions.ready, what="a new mailbox")
    with sessions.master() as master:
        assert master.run(blobs()).results() == right()
