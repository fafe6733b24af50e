"""The worker: keeps torch and shared data warm, reads letters, runs jobs, publishes results.

It is the guardian's child and dies with it. The two talk through one socket, in lines of JSON: the
worker says when it is ready and which job has a deadline; the guardian says when to stop.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import threading
from typing import Any

from ..base import Base
from ..contents import Done, JobSheet
from ..files import LocalFiles, LocalLock, SystemClock
from ..journal import Journal
from ..runs import RunCard
from ..watch import Waiter
from .desk import Desk, Step
from .hall import STAY_S, Hall
from .tree import die_with_parent

# How long results that cannot be written wait before they are tried again.
BLOCKED_S = 0.5


class Line:
    """The worker's end of the socket to its guardian."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self.stopping = threading.Event()

    def say(self, **fields: Any) -> None:
        """Tell the guardian something."""
        self._socket.sendall(json.dumps(fields).encode() + b"\n")

    def listen(self, waiter: Waiter) -> None:
        """Wait for the word to stop; the socket's end means the same."""
        self._socket.recv(16)
        self.stopping.set()
        waiter.wake()


def main() -> None:
    """Run until told to stop."""
    settings = json.loads(sys.argv[1])
    die_with_parent(settings["parent"])
    # The terminal's Ctrl-C is for the guardian, which tells us to finish first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Ours too: it is free when both of us are gone. Never released here, since unlocking would take
    # it from the guardian as well; known as a lock, so that children of kernels drop it.
    agent_lock = LocalLock(settings["lock_fd"])
    del sys.path[0]  # the folder that `-m` needed to find this package
    base, agent_id = Base(settings["base"]), settings["agent"]
    journal = Journal(base, f"worker {agent_id}")
    for module in settings["preload"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    _limit_threads(settings["threads"])
    work(base, agent_id, settings, Line(settings["socket_fd"]), journal)
    assert agent_lock.fd >= 0


def work(base: Base, agent_id: str, settings: dict[str, Any], line: Line, journal: Journal) -> None:
    """Take letters until the guardian says stop."""
    from .kernel import Kernels

    files = LocalFiles()
    kernels = Kernels(files, base.data, journal)

    # On the CPU there is no card that a job could have to itself.
    hall = Hall(base, settings["gpu"]) if settings["gpu"] != "cpu" else None

    def run_job(card: RunCard, sheet: JobSheet, job: int, attempt: int) -> Done:
        if hall is None:
            return run_in_time(card, sheet, job, attempt)
        if sheet.options.exclusive:
            with hall.alone():
                return run_in_time(card, sheet, job, attempt)
        hall.enter()
        return run_in_time(card, sheet, job, attempt)

    def run_in_time(card: RunCard, sheet: JobSheet, job: int, attempt: int) -> Done:
        if sheet.options.timeout_s is None:
            return kernels.run_job(card, sheet, job, attempt)
        line.say(deadline_s=sheet.options.timeout_s, retries=sheet.options.retries)
        try:
            return kernels.run_job(card, sheet, job, attempt)
        finally:
            line.say(deadline_s=None)

    desk = Desk(
        files,
        base,
        agent_id,
        run_job,
        clock=SystemClock(),
        journal=journal,
        gpu=settings["gpu"],
        pid=os.getpid(),
    )
    waiter = Waiter([base.mailbox(agent_id)])
    threading.Thread(target=line.listen, args=[waiter], daemon=True).start()
    line.say(ready=True, device=str(kernels.device))
    clock = SystemClock()
    while not line.stopping.is_set():
        try:
            step = desk.step()
        except OSError as error:
            # Too many open files, a sick disk: what is in hand stays, and is tried again.
            journal.log("error", f"the base cannot be used now: {error}")
            step = Step.BLOCKED
        if step is Step.WORKED:
            waiter.stir(clock.monotonic())
        elif step is Step.BLOCKED:
            if hall is not None:
                hall.leave()
            line.stopping.wait(BLOCKED_S)
        elif desk.box.gone():
            journal.log("error", "the mailbox was removed by somebody else")
            return
        elif hall is not None and hall.inside:
            # The next letter is likely to come at once; if not, rest outside.
            if not waiter.wait(STAY_S, lambda: desk.box.size() > 0) and not desk.box.size():
                hall.leave()
        else:
            # A letter may come without an event: look again every second.
            waiter.wait(1.0, lambda: desk.box.size() > 0)
    desk.take_down()
    waiter.close()


def _limit_threads(threads: int | None) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and threads is not None:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
