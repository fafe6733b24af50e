"""Commands in containers of a real podman: their ends, their locks and their logs.

As root, and as an ordinary user (rootless podman).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from postroom.commands.container_launcher import has_more_ids
from postroom.commands.spec import CommandSpec
from postroom.gpus.ledger.protocol import LeaseEntry, open_ledger
from postroom.queue.submission import submit
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.store.requests import Request, RequestVerb, ask
from postroom.testing import RealSessions, wait_until
from tests.gpus.ledgerkit import REPOSITORY

from .conftest import drive
from .test_queue import outcome

IMAGE = "postroom-busybox"
FILES = LocalFiles()
APPLETS = ("sh", "cat", "echo", "env", "id", "sleep", "touch", "ls")


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The words that call a podman with an image of busybox, in storage of its own."""
    podman, busybox = shutil.which("podman"), shutil.which("busybox")
    mapped = not os.geteuid() or not has_more_ids(os.geteuid()) or shutil.which("newuidmap")
    if podman is None or busybox is None or not mapped:
        if os.environ.get("CI"):
            pytest.fail("podman, busybox or uidmap is not installed: see .ci/run")
        pytest.skip("podman, busybox or uidmap is not installed")
    place = Path(tempfile.mkdtemp(prefix="podman-"))  # a short path: it has sockets in it
    if (
        os.geteuid()
        and subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode
    ):
        pytest.skip("Linux does not let an ordinary user run containers here")
    words = (
        f"{podman} --cgroup-manager=cgroupfs --runtime runc --storage-driver vfs "
        f"--root {place}/root --runroot {place}/run --tmpdir {place}/tmp"
    )
    # Podman's locks are in memory that all of them share, and a new one frees those of the others.
    (place / "containers.conf").write_text('[engine]\nlock_type = "file"\n')
    patch = pytest.MonkeyPatch()
    patch.setenv("CONTAINERS_CONF", str(place / "containers.conf"))
    with tarfile.open(place / "image.tar", "w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    made = subprocess.run(
        [*shlex.split(words), "import", place / "image.tar", IMAGE], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    yield words
    subprocess.run([*shlex.split(words), "rm", "-fa"], check=False, capture_output=True)
    if os.geteuid():
        # Files of the container's own users, then the process that keeps their namespace.
        own = [place / name for name in ("root", "run")]
        subprocess.run([*shlex.split(words), "unshare", "rm", "-rf", *own], capture_output=True)
        os.kill(int((place / "tmp/pause.pid").read_text()), signal.SIGTERM)
    patch.undo()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def environment(engine: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("POSTROOM_CONTAINER_ENGINE", engine)
    monkeypatch.setenv(
        "POSTROOM_CONTAINER_OPTIONS",
        "--network=none --ulimit nofile=1024:1024 --ulimit nproc=1000:1000",
    )
    return engine


def names(engine: str, *options: str) -> list[str]:
    asked = [*shlex.split(engine), "ps", "-a", *options, "--format", "{{.Names}}"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()


def clients(token: str) -> list[int]:
    """The pids of `podman run` with a token in its command line."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"podman") and b"run" in words and token.encode() in b" ".join(words):
            found.append(int(name))
    return found


def kill_clients(token: str) -> None:
    """Kill the client; rootless podman is two processes, of which one tells the other to end."""
    found = clients(token)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    wait_until(lambda: not clients(token))


def test_a_job_in_a_container_has_its_log_its_exit_code_and_its_end(
    environment: str, sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start(options=("--preload", ""))
    cwd = Path(sessions.import_folder)

    def queue(line: str) -> JobId:
        spec = CommandSpec(line, cwd=str(cwd), container=IMAGE, grace_s=1.0, merged=True)
        return submit(FILES, sessions.base, [spec])[0]

    says = queue("echo I am $(id -u) in $PWD; ls kernels.py; echo oh >&2; exit 3")
    survives = queue("touch one; while [ ! -e go ]; do sleep 0.05; done; exit 4")
    killed = queue("touch two; sleep 1000")
    with sessions.master() as master:

        def ended(job: JobId) -> Callable[[], bool]:
            return lambda: os.path.exists(sessions.base.result(job.run, job.number))

        drive(master, ended(says), what="the first job")
        failure = outcome(sessions, says)
        # Without more ids, an ordinary user is called root in the container.
        uid = os.geteuid() if has_more_ids(os.geteuid()) else 0
        assert failure is not None and "3" in failure.message
        (log,) = Path(sessions.base.root).glob(f"runs/*/*{says.number}/*.OUT")
        assert log.read_text() == f"I am {uid} in {cwd}\nkernels.py\noh\n"

        drive(master, (cwd / "one").exists, what="the second job")
        wait_until(lambda: names(environment, "--filter", "status=running"))
        kill_clients("touch one")
        (cwd / "go").touch()
        drive(master, ended(survives), what="the second job's end")
        failure = outcome(sessions, survives)
        assert failure is not None and "4" in failure.message

        drive(master, (cwd / "two").exists, what="the third job")
        ask(FILES, sessions.base, Request(RequestVerb.KILL, jobs=(killed,), by="ada"))
        drive(master, ended(killed), what="the third job's end")
    assert names(environment) == []


def test_the_lease_lasts_as_long_as_the_container_whoever_is_killed(
    environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G")
    monkeypatch.setenv("POSTROOM_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    line = "touch here; sleep 1000"
    words = [sys.executable, "-m", "postroom", "gpu", "run", "--container", IMAGE]
    process = subprocess.Popen([*words, "--", "sh", "-c", line], cwd=tmp_path)
    wait_until((tmp_path / "here").exists)
    assert clients(line)

    def held() -> list[LeaseEntry]:
        return open_ledger().holders()

    process.kill()
    process.wait()
    kill_clients(line)
    assert len(held()) == 1
    subprocess.run(
        [*shlex.split(environment), "rm", "-f", "-t", "0", *names(environment)],
        check=True,
        capture_output=True,
    )
    wait_until(lambda: not held())
