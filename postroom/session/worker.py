"""The worker: keeps torch and shared data warm, reads letters, runs jobs, publishes results.

It is the guardian's child and dies with it. The two talk through one socket, in lines. The worker
says in JSON when it is ready and which job has a deadline, and sends attempts at commands. The
guardian sends words: when to stop, and how an attempt ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..commands.attempt import LINGER_S, CommandAttempt, Stopped
from ..gpus.devices.device import DeviceMissing
from ..store.base import Base
from ..store.files import LocalBox, LocalFiles, LocalLock, SystemClock
from ..store.journal import Journal
from ..system.absence import may_pass
from ..system.file_events import Waiter
from ..system.process_tree import die_with_parent
from .background_publisher import BackgroundPublisher
from .gpu_sharing import STAY_S
from .inbox import Inbox, Step
from .job_runner import CARD_FAILED, NEEDS_TASKS, JobRunner, RunCommand, TasksNeeded
from .overtime import Overtime
from .prefetch import Prefetcher
from .process_state import mark

# How long results that cannot be written wait before they are tried again.
BLOCKED_S = 0.5
# The exit code of a worker that cannot use the base any more, for a reason that waiting won't mend.
BROKEN = 72


class GuardianLink:
    """The worker's end of the socket to its guardian."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.stopping = threading.Event()

    def say(self, **fields: Any) -> None:
        """Tell the guardian something."""
        self._socket.sendall(json.dumps(fields).encode() + b"\n")

    def run_command(self, attempt: CommandAttempt, lingers: Callable[[], None]) -> None:
        """Have the session's minder run a command and publish how it ended; wait for that."""
        self._socket.sendall(attempt.encode())
        try:
            word = self._words.get(timeout=LINGER_S)
        except queue.Empty:
            lingers()
            word = self._words.get()
        if word == "stopped":
            raise Stopped

    def card_problem(self) -> str:
        """Ask what the driver reports of the session's GPUs; "" if it reports nothing."""
        self.say(ask_card=True)
        return self._words.get().removeprefix("card ").strip()

    def listen(self, waiter: Waiter) -> None:
        """Read the guardian's words; "stop", or the end of the socket, stops the worker."""
        heard = b""
        # A guardian that is killed with words of ours unread resets the connection.
        with contextlib.suppress(ConnectionResetError):
            while data := self._socket.recv(4096):
                *lines, heard = (heard + data).split(b"\n")
                for word in lines:
                    if word == b"stop":
                        self.stopping.set()
                        waiter.wake()
                    else:
                        self._words.put(word.decode())
        # A thread that waits for a reply keeps waiting, and dies with the guardian in a moment. If
        # it gave up the letter of a command that its minder still runs, it would run twice.
        self.stopping.set()
        waiter.wake()


def main() -> None:
    """Run until told to stop."""
    settings = json.loads(sys.argv[1])
    die_with_parent(settings["parent"])
    # The terminal's Ctrl-C is for the guardian, which tells us to finish first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.path.exists(Base(settings["base"]).far_mark):
        _outlive_sigterm()
    # The lock is free when both processes are gone. It is never released here, since that would
    # take it from the guardian, too. As a LocalLock it is dropped by processes that tasks fork.
    agent_lock = LocalLock(settings["lock_fd"])
    del sys.path[0]  # the folder of this package: kernels do not import from it
    base, agent_id = Base(settings["base"]), settings["agent"]
    journal = Journal(base, f"worker {agent_id}")
    guardian = GuardianLink(settings["socket_fd"])
    code = work(base, agent_id, settings, guardian, journal, guardian.run_command)
    assert agent_lock.fd >= 0
    sys.exit(code)


def _outlive_sigterm() -> None:
    """An engine tells all processes of a pilot to stop: the job in hand is finished first.

    What a job forks ends as always; what it executes never has this handler.
    """
    worker = os.getpid()

    def told(number: int, _: object) -> None:
        if os.getpid() != worker:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, told)


def work(
    base: Base,
    agent_id: str,
    settings: dict[str, Any],
    guardian: GuardianLink,
    journal: Journal,
    run_command: RunCommand,
) -> int:
    """Take letters until the guardian says stop, or until it cannot go on; return the exit code."""
    files = LocalFiles()
    runner = JobRunner(files, base, settings, guardian, journal, run_command)
    sharing = runner.sharing
    warm = bool(settings["preload"]) and not settings["lazy"]
    try:
        device = str(runner.tasks.device) if warm else "commands"
    except DeviceMissing as error:
        guardian.say(refused=str(error))
        return CARD_FAILED
    inbox = runner.turn = Inbox(
        files,
        base,
        agent_id,
        runner.run_job,
        clock=SystemClock(),
        journal=journal,
        gpu=settings["gpu"],
        pid=os.getpid(),
        prefetcher=Prefetcher(runner.read_ahead) if settings["preload"] else None,
        publisher=BackgroundPublisher(_own) if settings["preload"] else None,
        run_alike=runner.run_alike,
    )
    if settings["preload"]:
        inbox.overtime = Overtime(inbox.linger)
    if isinstance(inbox.hand, LocalBox):
        runner.descriptor = mark(inbox.hand.fileno())
    waiter = Waiter([base.mailbox(agent_id)], spin=warm)
    threading.Thread(target=guardian.listen, args=[waiter], daemon=True).start()
    guardian.say(ready=True, device=device)
    clock = SystemClock()
    idle_since = clock.monotonic()
    code = 0
    while not guardian.stopping.is_set():
        try:
            step = inbox.step()
            if runner.used_up and step is not Step.BLOCKED:
                journal.log("warning", f"the worker is replaced: {runner.used_up}")
                break
        except Stopped:
            break
        except TasksNeeded:  # the letter is given back, and soon another worker can run it
            code = NEEDS_TASKS
            break
        except OSError as error:
            if not may_pass(error):
                return _give_up(guardian, error)
            journal.log("error", f"the base cannot be used now: {error}")
            step = Step.BLOCKED
        if step is Step.WORKED:
            idle_since = clock.monotonic()
            waiter.expect_more(idle_since)
        elif step is Step.BLOCKED:
            if sharing is not None:
                sharing.leave()
            guardian.stopping.wait(BLOCKED_S)
        elif inbox.box.gone():
            journal.log("error", "the mailbox was removed by somebody else")
            return 0
        elif sharing is not None and sharing.inside:
            # The next letter is likely to come at once; if not, let others use the GPU alone.
            if not waiter.wait(STAY_S, lambda: inbox.box.size() > 0) and not inbox.box.size():
                sharing.leave_idle()
        # A letter may come without an event: look again every second.
        elif not waiter.wait(1.0, lambda: inbox.box.size() > 0):
            runner.idle(clock.monotonic() - idle_since)
    try:
        inbox.take_down()
    except OSError as error:
        return _give_up(guardian, error)
    waiter.close()
    if runner.broken_context:
        # Libraries that clean up on the GPU when Python ends would abort the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return code


def _own(value: Any) -> Any:
    """Copy a result; what that needs is loaded with the first task, and not for commands."""
    from .tasks import own

    return own(value)


def _give_up(guardian: GuardianLink, error: OSError) -> int:
    """Tell the guardian why this worker ends; its running job is still in its hand."""
    with contextlib.suppress(OSError):
        guardian.say(broken=str(error))
    return BROKEN


if __name__ == "__main__":
    main()
