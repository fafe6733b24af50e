"""For your own tests: real sessions on simulated GPUs, and waits that show the folder on failure.

    with sessions(tmp_path / "base", import_folder=tmp_path) as running:
        running.start("0")
        with running.master() as master:
            pool = master.run([Job("kernels:double", x=4)])
        os.kill(running.worker("0"), signal.SIGKILL)  # real processes: really kill them
        wait_until(lambda: running.ready("0"), folder=running.base.root)

Nothing here is a mock. The GPUs are simulated (`POSTROOM_FAKE_GPUS`), with a ledger of their own;
the sessions, the folder and the signals are real. `running.script_cards()` puts a scripted device
behind the GPUs, which fails as real ones do: kernels call it through `scripted_device()`, tests
script it with `script_device` (`postroom.gpus.devices.scripted_device` says how).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from .gpus.devices.scripted_device import script_device as script_device
from .gpus.devices.scripted_device import scripted_device as scripted_device
from .master import Master
from .store.base import Base, create_base
from .store.files import LocalFiles
from .system.own_python import start_detached
from .system.process_tree import mark_of, marked, sweep

# Longer than anything takes on a busy machine.
PATIENCE_S = 60.0
POLL_S = 0.005
CARDS = "4x24G"

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    *,
    what: str = "the condition",
    folder: str | os.PathLike[str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> T:
    """Wait until a condition is true and return its value; giving up shows the folder."""
    give_up_at = time.monotonic() + timeout_s
    while not (said := condition()):
        if time.monotonic() > give_up_at:
            shown = f"; {os.fspath(folder)} holds:\n{listing(folder)}" if folder else ""
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s{shown}")
        time.sleep(POLL_S)
    return said


def listing(folder: str | os.PathLike[str], *, most: int = 200) -> str:
    """Every file below a folder with its size, and the ends of the logs among them."""
    lines: list[str] = []
    tails: list[str] = []
    root = os.fspath(folder)
    for parent, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                lines.append(f"{os.path.getsize(path):>10}  {os.path.relpath(path, root)}")
                if parent.endswith("/log") and not name.startswith("events"):
                    tails.append(f"--- {os.path.relpath(path, root)}\n{_tail(path)}")
    if len(lines) > most:
        lines[most:] = [f"... and {len(lines) - most} more"]
    return "\n".join([*lines, *tails])


@contextlib.contextmanager
def sessions(
    base: str | os.PathLike[str], *, import_folder: str | os.PathLike[str] | None = None
) -> Iterator[RealSessions]:
    """Have real sessions on simulated GPUs while the block runs; afterwards none is left.

    Processes that outlive their sessions are ended, and an AssertionError is raised.
    """
    folder = tempfile.mkdtemp(prefix="postroom-test-")
    running = RealSessions(
        create_base(base), os.fspath(import_folder) if import_folder is not None else None, folder
    )
    try:
        yield running
    finally:
        strays = running.close()
        shutil.rmtree(folder, ignore_errors=True)
    if strays:
        raise AssertionError(f"{strays} processes outlived their sessions")


class RealSessions:
    """The sessions that a test started on one base."""

    def __init__(self, base: Base, import_folder: str | None, folder: str) -> None:
        self._folder = folder
        ledger = f"{folder}/ledger"
        os.mkdir(ledger, 0o700)
        self.base = base
        self.import_folder = import_folder
        self.environment = {
            **os.environ,
            "POSTROOM_FAKE_GPUS": CARDS,
            "POSTROOM_PRELOAD": "numpy",  # a worker without torch starts in a third of a second
            "POSTROOM_LEDGER": ledger,
        }
        self.guardians: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._agents: set[str] = set()
        self._files = LocalFiles()

    def script_cards(self, **options: float) -> str:
        """Put a scripted device behind the GPUs of later sessions; return the cards' folder."""
        folder = f"{self._folder}/cards"
        os.makedirs(folder, mode=0o700, exist_ok=True)
        words = ",".join(f"{name}={value}" for name, value in options.items())
        self.environment["POSTROOM_FAKE_GPUS_FOLDER"] = folder
        self.environment["POSTROOM_FAKE_DEVICE"] = words or "1"
        return folder

    def master(self, *, durable: bool = False) -> Master:
        """A Master in this process."""
        return Master(self.base.root, import_folder=self.import_folder, durable=durable)

    def start(
        self,
        agent_id: str = "0",
        gpu: str = "0",
        *,
        wait: bool = True,
        options: Sequence[str] = (),
    ) -> int:
        """Start a session, and wait until it takes letters; return the guardian's pid."""
        words = [gpu, self.base.root, "--agent", agent_id, *options]
        with open(self.words(agent_id), "ab") as log:
            guardian = start_detached(
                "postroom.session", *words, log=log.fileno(), env=self.environment
            )
        self.guardians[agent_id] = guardian
        self._started.append(guardian)
        self._agents.add(agent_id)
        if wait:
            self.wait_until(
                lambda: self.ready(agent_id) or guardian.poll() is not None,
                what=f"session {agent_id} being ready",
            )
            if guardian.returncode is not None:
                raise AssertionError(f"session {agent_id} ended: {_tail(self.words(agent_id))}")
        return guardian.pid

    def words(self, agent_id: str) -> str:
        """The file with the output of a session."""
        return f"{self._folder}/session-{agent_id}.txt"

    def ready(self, agent_id: str = "0") -> bool:
        """Whether a session takes letters."""
        return self._files.exists(self.base.mailbox(agent_id))

    def worker(self, agent_id: str = "0") -> int:
        """The pid of a session's worker; 0 while it has none."""
        guardian = self.guardians[agent_id].pid
        children = f"/proc/{guardian}/task/{guardian}/children"
        with contextlib.suppress(OSError, IndexError), open(children, encoding="ascii") as file:
            return int(file.read().split()[0])
        return 0

    def wait_until(self, condition: Callable[[], T], *, what: str = "the condition") -> T:
        """Wait; giving up shows the base."""
        return wait_until(condition, what=what, folder=self.base.root)

    def kill(self, agent_id: str = "0") -> None:
        """End a guardian with SIGKILL; its worker dies with it."""
        self.guardians[agent_id].kill()
        self.guardians[agent_id].wait()

    def stop(self, agent_id: str = "0") -> int:
        """Have a session finish its job and exit; return its exit code."""
        self.guardians[agent_id].terminate()
        return self.guardians[agent_id].wait(PATIENCE_S)

    def processes(self, agent_id: str) -> list[int]:
        """Every living process that a session has started, directly or not."""
        return marked(mark_of(self.base.root, agent_id))

    def close(self) -> int:
        """End every session that was started, by its pid; return how many processes were left."""
        for guardian in self._started:
            if guardian.poll() is None:
                guardian.send_signal(signal.SIGCONT)
                guardian.terminate()
        for guardian in self._started:
            try:
                guardian.wait(10)
            except subprocess.TimeoutExpired:
                guardian.terminate()  # the second time means at once
                guardian.wait(PATIENCE_S)
        return sum(sweep(mark_of(self.base.root, agent_id)) for agent_id in self._agents)


def _tail(path: str, *, size: int = 2000) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - size))
        return file.read().decode(errors="replace")
