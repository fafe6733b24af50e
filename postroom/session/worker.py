"""The worker: keeps torch and shared data warm, reads letters, runs jobs, publishes results.

It is the guardian's child and dies with it. The two talk through one socket, in lines of JSON: the
worker says when it is ready and which job has a deadline; the guardian says when to stop.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..commands.attempt import LINGER_S, AttemptEnd, CommandAttempt, Stopped
from ..store.base import Base
from ..store.files import LocalFiles, LocalLock, SystemClock
from ..store.journal import Journal
from ..system.file_events import Waiter
from ..system.process_tree import die_with_parent
from .gpu_sharing import STAY_S
from .inbox import Inbox, Step
from .job_runner import JobRunner

# How long results that cannot be written wait before they are tried again.
BLOCKED_S = 0.5


class GuardianLink:
    """The worker's end of the socket to its guardian."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.stopping = threading.Event()

    def say(self, **fields: Any) -> None:
        """Tell the guardian something."""
        self._socket.sendall(json.dumps(fields).encode() + b"\n")

    def ask(self, errand: CommandAttempt, lingers: Callable[[], None]) -> AttemptEnd | None:
        """Have a command run, and wait for the word that says that it ended."""
        self._socket.sendall(errand.encode())
        try:
            word = self._words.get(timeout=LINGER_S)
        except queue.Empty:
            lingers()
            word = self._words.get()
        if word == "stopped":
            raise Stopped
        return None

    def listen(self, waiter: Waiter) -> None:
        """Wait for the word to stop, which the socket's end means, too, and for other words."""
        heard = b""
        while data := self._socket.recv(4096):
            *lines, heard = (heard + data).split(b"\n")
            for word in lines:
                if word == b"stop":
                    self.stopping.set()
                    waiter.wake()
                else:
                    self._words.put(word.decode())
        # Whoever waits for a word goes on waiting, and dies with the guardian in a moment: laying
        # down the letter of a command that its minder goes on with would have it run twice.
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
    work(base, agent_id, settings, GuardianLink(settings["socket_fd"]), journal)
    assert agent_lock.fd >= 0


def work(
    base: Base, agent_id: str, settings: dict[str, Any], line: GuardianLink, journal: Journal
) -> None:
    """Take letters until the guardian says stop."""
    files = LocalFiles()
    running = JobRunner(files, base, agent_id, settings, line, journal)
    sharing = running.sharing
    if settings["preload"]:
        running.check_card()
    desk = running.turn = Inbox(
        files,
        base,
        agent_id,
        running.run_job,
        clock=SystemClock(),
        journal=journal,
        gpu=settings["gpu"],
        pid=os.getpid(),
    )
    waiter = Waiter([base.mailbox(agent_id)], spin=bool(settings["preload"]))
    threading.Thread(target=line.listen, args=[waiter], daemon=True).start()
    device = str(running.kernels.device) if settings["preload"] else "commands"
    line.say(ready=True, device=device)
    clock = SystemClock()
    while not line.stopping.is_set():
        try:
            step = desk.step()
        except Stopped:
            break
        except OSError as error:
            # Too many open files, a sick disk: what is in hand stays, and is tried again.
            journal.log("error", f"the base cannot be used now: {error}")
            step = Step.BLOCKED
        if step is Step.WORKED:
            waiter.expect_more(clock.monotonic())
        elif step is Step.BLOCKED:
            if sharing is not None:
                sharing.leave()
            line.stopping.wait(BLOCKED_S)
        elif desk.box.gone():
            journal.log("error", "the mailbox was removed by somebody else")
            return
        elif sharing is not None and sharing.inside:
            # The next letter is likely to come at once; if not, rest outside.
            if not waiter.wait(STAY_S, lambda: desk.box.size() > 0) and not desk.box.size():
                sharing.leave()
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
