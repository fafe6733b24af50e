"""The minder: the parent process of one command at a time, which outlives its session.

    guardian --fork--> minder --bash -c LINE--> the command and all that it starts
       |  ^               |
       |  '-- "done" -----|---> result_pool/<run>/<job>.npz, and the job's folder
       '---- attempt ---->'

The guardian forks it without exec, which takes a millisecond, and keeps it for the next command.
It shares the agent's lock: while the minder lives, the agent is not dead, nobody takes back its
letter, and no second guardian can take its place. So `kill -9` of worker, guardian and Master
changes nothing for a command: it goes on, its minder waits for it, publishes how it ended and
exits, and then the lock is free.

In a session that runs only commands, the worker is the minder (`session.forked_worker`): it calls
`perform`, and its inbox publishes.

A command ends with all its processes. The minder is a subreaper, so whatever the command starts
stays below the minder, however it forks: SIGTERM, a grace period, SIGKILL, until nothing is left.
If the minder itself is killed, the mark in the environment finds what it leaves
(`process_tree.sweep`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from ..errors import CardHeld, GpuError, PostroomError
from ..gpus.ledger.lease_environment import granted_over
from ..parcel.sheets import Failure, JobEnd, Outcome, RanBy
from ..store.agents import read_agent_info
from ..store.base import Base
from ..store.files import LocalFiles, replace_file
from ..store.journal import Journal
from ..store.requests import StopOrder, read_stop
from ..store.runs import RunInfo, read_run_info
from ..system import cgroups
from ..system.absence import may_pass
from ..system.fork import SIGNALS, ForkedProcess, fork_process, hear_signals
from ..system.oom_kills import count_oom_kills
from ..system.process_tree import MARK, adopt_orphans, below, mark_of, parent_of, reap, reap_orphans
from ..system.processes import command_line, current_umask
from ..system.shortage import WAITED_FOR
from ..text.safe_text import printable
from .attempt import CONTINUE_LATER, LINGER_S, AttemptEnd, CommandAttempt, Stopped
from .failure import Cause, End, explain, is_out_of_memory
from .gpu_use import GpuUse
from .job_environment import JobEnvironment, read_environment
from .job_folder import COPY, SCRIPT, CappedLog, JobFolder, stamp
from .outcome_record import record

T = TypeVar("T")
# How often a long output is trimmed, orphans are reaped and stop orders are looked for.
LOOK_S = 0.5
# Linux takes no word of this size (MAX_ARG_STRLEN): such a line is run from a file of its folder.
LONG_LINE = 128 << 10
# A full disk is tried again after this long.
BLOCKED_S = 0.5


@dataclass(frozen=True)
class MinderContext:
    """The session that a minder works for, and what pins a command to its GPU."""

    base: Base
    agent: str
    gpu: str  # the GPU's uuid, or "cpu"
    gpu_name: str
    environment: dict[str, str]
    kept_fds: tuple[int, ...]  # of the GPU's lease and of the session's tree: all inherit them
    lock_fd: int
    cgroup: str = ""
    shares: bool = False  # no GPU of its own: each command books its part of one

    def fork(self, role: str, body: Callable[[], int | None], *, keep: int) -> ForkedProcess:
        """Fork a process that shares the session's locks, the GPU's lease and one more descriptor.

        The caller must have one thread only.
        """
        lock = os.dup(self.lock_fd)

        def begin() -> int | None:
            cgroups.enter(self.cgroup)
            return body()

        def failed() -> None:
            Journal(self.base, f"{role} {self.agent}").log("error", traceback.format_exc())

        try:
            return fork_process(begin, keep={lock, keep, *self.kept_fds}, failed=failed)
        finally:
            os.close(lock)


@dataclass
class CommandWatch:
    """What is looked at while a command runs."""

    outputs: tuple[CappedLog, ...]
    deadline: float | None
    lingers_at: float
    lingers: Callable[[], None] | None  # still to be called

    def look_s(self, now: float) -> float:
        """How long until the next look."""
        times = [now + LOOK_S]
        if self.deadline is not None:
            times.append(self.deadline)
        if self.lingers is not None:
            times.append(self.lingers_at)
        return max(0.0, min(times) - now)

    def look(self, now: float) -> None:
        """Trim long outputs, and say once that the command takes long."""
        if self.lingers is not None and now >= self.lingers_at:
            lingers, self.lingers = self.lingers, None
            lingers()
        for output in self.outputs:
            output.trim()


def fork_minder(context: MinderContext) -> tuple[ForkedProcess, socket.socket]:
    """Start a minder; return it, and the socket over which it takes attempts."""
    ours, theirs = socket.socketpair()
    minder = context.fork("minder", lambda: Minder(context).serve(theirs), keep=theirs.fileno())
    theirs.close()
    return minder, ours


class Minder:
    """Runs commands, one after another."""

    def __init__(self, context: MinderContext) -> None:
        adopt_orphans()
        self._context = context
        self._files = LocalFiles()
        self._journal = Journal(context.base, f"minder {context.agent}")
        self._info: RunInfo | None = None
        self._stops = 0
        self._stop_order: StopOrder | None = None  # for the running command
        self._left_behind = ""  # processes that were ended after the command
        self._over = ""  # how much more GPU memory it used than is reserved
        self._host = socket.gethostname()
        self._programs: dict[str, str] = {}
        self._oom_kills = 0  # as counted at most LOOK_S before the command began
        self._oom_kills_at = -LOOK_S
        self._gpu_use: GpuUse
        self._helpers: set[int] = set()  # processes below us that no command started
        for fd in context.kept_fds:
            os.set_inheritable(fd, True)  # the GPU is free when its last holder is gone
        self._umask = self._agents_umask = current_umask()
        self._submitted = JobEnvironment({}, self._umask)  # of the last command that had one
        self._environ = {**os.environ, MARK: mark_of(context.base.root, context.agent)}
        # A wakeup descriptor ends a poll; the handlers only keep the signals from killing us.
        self._wake, writer = socket.socketpair()
        self._wake.setblocking(False)
        writer.setblocking(False)
        self._writer = writer
        for number in SIGNALS:
            signal.signal(number, self._stop)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        hear_signals()

    def _stop(self, *_: object) -> None:
        self._stops += 1

    def serve(self, line: socket.socket) -> None:
        """Run what comes over a socket, until its other end is gone."""
        waiting = b""
        while not self._stops:
            try:
                data = line.recv(1 << 20)
            except ConnectionError:
                return
            if not data:
                return
            *attempts, waiting = (waiting + data).split(b"\n")
            for attempt in attempts:
                word = self.carry_out(CommandAttempt.decode(attempt))
                with contextlib.suppress(OSError):  # the guardian may be gone: the result counts
                    line.sendall(word + b"\n")

    def carry_out(self, attempt: CommandAttempt) -> bytes:
        """Run one command to its end, and publish or note that; return a word for the worker."""
        started_at = time.time()
        try:
            ended = self.perform(attempt)
        except Stopped:
            return b"stopped"
        context = self._context
        ran_by = RanBy(context.agent, context.gpu, os.getpid(), started_at, attempt.attempt)

        def write() -> bool:
            if self._info is None or self._info.run != attempt.run:
                self._info = read_run_info(self._files, context.base, attempt.run)
            info = self._info
            return record(self._files, context.base, info, attempt, ended, ran_by, at=time.time())

        return b"done" if self._insist(write) else b"dropped"

    def perform(
        self, attempt: CommandAttempt, lingers: Callable[[], None] = lambda: None
    ) -> AttemptEnd:
        """Run one command to its end, with INFO and logs in its folder; the caller publishes.

        A command that succeeded, and whose outcome was not published, is not run again.
        """
        spec = attempt.spec
        folder = JobFolder(spec.folder)
        began, started_at = time.monotonic(), time.time()
        number = 0
        self._stop_order = None
        self._left_behind = ""
        self._over = ""
        self._gpu_use = GpuUse(
            self._context.base, attempt, self._context.environment.get("POSTROOM_GPU", "")
        )
        try:
            if self._has_ended_well(folder, attempt.job_name):
                return AttemptEnd(_ended_before(folder.read_info()))
            self._take_on_environment(attempt)
            if self._context.shares or attempt.elsewhere:
                self._wait_for_gpu(attempt, lingers)
                began, started_at = time.monotonic(), time.time()
            number, outputs = self._prepare(attempt, folder, started_at)
            code, overdue, oom_kills = self._run(attempt, number, outputs, lingers)
            said = folder.tails(merged=bool(spec.merged)) if code or overdue else ("", "")
            end = End(
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                timed_out_s=spec.timeout_s if overdue else None,
                oom_kills=oom_kills,
                over=self._over if spec.over == "kill" else "",
                out=said[0],
                err=said[1],
                on_gpu=self._context.gpu != "cpu",
            )
        except Stopped:
            self._gpu_use.close()
            if number:
                folder.end({"ended": stamp(time.time()), "outcome": "stopped"})
            raise
        except PostroomError as error:
            no_gpu = isinstance(error, GpuError | CardHeld)
            end = End(code=None, refused=f"{error}", no_gpu=no_gpu)
            if not number:
                number, outputs = self._prepare(attempt, folder, started_at)
                for output in outputs:
                    output.close()
        except (OSError, ValueError) as error:
            # No folder to run in, no shell, no more processes, or what no process can be given,
            # such as a zero byte: a failure like any other.
            end = End(code=126, err=f"{error}")
        seconds = time.monotonic() - began
        memory = self._gpu_use.finish(
            ok=end.ok, out_of_memory=is_out_of_memory(end), timeline=folder.timeline
        )
        failure, again = self._judge(attempt, end)
        left = {"left": f"{self._left_behind}; ended"} if self._left_behind else {}
        over = {"over": self._over} if self._over else {}
        facts = {**_ending(end, failure, seconds), **memory, **over, **left}
        folder.end(facts, ok=failure is None if again != "stopped" else None)
        self._journal.event(
            "command",
            run=attempt.run,
            job=attempt.job,
            attempt=attempt.attempt,
            outcome=facts["outcome"],
            seconds=facts["seconds"],
        )
        done = JobEnd(None if failure else {"attempt": number, **facts}, failure, seconds)
        return AttemptEnd(done, again)

    def _judge(self, attempt: CommandAttempt, end: End) -> tuple[Failure | None, str | None]:
        """Why a command failed, if it did, and the kind of note with which it is requeued."""
        failure, order = explain(end), self._stop_order
        if failure is None:
            return None, None
        if order is not None and order.final:
            return Failure(Outcome.CANCELLED, "cancelled", order.reason), None
        if order is not None:
            return Failure(Outcome.CANCELLED, "stopped", order.reason), "stopped"
        if end.timed_out_s is not None and end.code == CONTINUE_LATER:
            reason = f"past its {end.timed_out_s:g} s, to continue from its checkpoint"
            return Failure(Outcome.TIMED_OUT, "stopped", reason), "stopped"
        if failure.kind in (Cause.GPU_LOST.value, Cause.GPU_BUSY.value):
            return failure, "lost"
        may_retry = attempt.failed < (attempt.spec.retries or 0)
        again = may_retry and not self._gpu_use.hopeless and not end.refused
        return failure, "failed" if again else None

    # Running

    def _wait_for_gpu(self, attempt: CommandAttempt, lingers: Callable[[], None]) -> None:
        """Wait for a part of a GPU; raises Stopped when the session is told to stop."""
        waited = CommandWatch((), None, time.monotonic() + LINGER_S, lingers)

        def wanted() -> bool:
            waited.look(time.monotonic())
            self._look_for_stop(attempt)
            return not self._stops and self._stop_order is None

        told = False

        def tell(why: str) -> None:
            nonlocal told
            told = True
            self._tell_waiting(why)

        try:
            self._gpu_use.book(shares=self._context.shares, wanted=wanted, say=tell)
        except CardHeld:
            if self._stop_order is None:
                raise Stopped from None
            raise
        finally:
            if told:
                self._tell_waiting("")
        self._helpers = set(below(os.getpid()))  # a ledger may have given its lease a process

    def _tell_waiting(self, why: str) -> None:
        """Have listings, and the scheduler, see that a command waits for its part of a GPU."""
        context = self._context
        with contextlib.suppress(OSError):
            info = read_agent_info(self._files, context.base, context.agent)
            if info is not None and context.shares:
                path = context.base.agent_info(context.agent)
                data = replace(info, waits_for=why[:1000]).encode()
                replace_file(self._files, context.base.temporary(), path, data)

    def _take_on_environment(self, attempt: CommandAttempt) -> None:
        """Learn the environment that a command was submitted with, and take its umask."""
        name, umask = attempt.spec.environment, self._agents_umask
        if name:
            if name != self._submitted.name:
                base = self._context.base
                self._submitted = read_environment(self._files, base, attempt.run, name)
            umask = self._submitted.umask
        if umask != self._umask:
            os.umask(umask)
            self._umask = umask

    def _look_for_stop(self, attempt: CommandAttempt) -> None:
        """See whether somebody wants the running command to end."""
        if self._stop_order is None:
            self._stop_order = read_stop(
                self._files, self._context.base, attempt.run, attempt.job, attempt.attempt
            )

    def _has_ended_well(self, folder: JobFolder, job: str) -> bool:
        """Whether a command need not run; while nobody can look, it is not run again."""
        while True:
            try:
                return folder.has_ended_well(job)
            except OSError as error:
                self._journal.log("error", f"a command waits: {folder.info}: {error.strerror}")
            if self._stops:
                raise Stopped
            time.sleep(BLOCKED_S)

    def _prepare(
        self, attempt: CommandAttempt, folder: JobFolder, started_at: float
    ) -> tuple[int, tuple[CappedLog, ...]]:
        """Make the folder and the files that a command writes to; wait while the disk is full."""
        spec = attempt.spec

        def make() -> tuple[int, tuple[CappedLog, ...]]:
            number = folder.begin()
            beginning = self._beginning(attempt, number, started_at)
            folder.tell({**beginning, **self._gpu_use.facts})
            if spec.checkpoint:
                os.makedirs(folder.checkpoint, exist_ok=True)
            paths = (folder.out,) if spec.merged else (folder.out, folder.err)
            return number, tuple(CappedLog(path, spec.output_bytes) for path in paths)

        return self._with_space(make)

    def _with_space(self, write: Callable[[], T]) -> T:
        """Write something; wait while the disk is full."""
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in WAITED_FOR:
                    raise
                self._journal.log("error", f"a command waits for disk space: {error.strerror}")
            if self._stops:
                raise Stopped
            time.sleep(BLOCKED_S)

    def _beginning(
        self, attempt: CommandAttempt, number: int, started_at: float
    ) -> dict[str, object]:
        spec = attempt.spec
        return {
            "name": attempt.name,
            "command": spec.command,
            "folder": attempt.cwd,
            **(
                {
                    "source": spec.source,
                    "snapshot": self._context.base.code_snapshot(attempt.run, spec.snapshot),
                }
                if spec.snapshot
                else {}
            ),
            "gpu": self._context.gpu_name or self._context.gpu,
            "host": self._host,
            "job": attempt.job_name,
            "agent": self._context.agent,
            "attempt": number,
            **({"arguments": json.dumps(spec.arguments)} if spec.arguments else {}),
            "started": stamp(started_at),
        }

    def _run(
        self,
        attempt: CommandAttempt,
        number: int,
        outputs: tuple[CappedLog, ...],
        lingers: Callable[[], None],
    ) -> tuple[int, bool, int]:
        """Run a command and what belongs to it; return its exit code, whether it was late, and how
        many processes Linux has ended meanwhile because memory ran out."""
        spec, began = attempt.spec, time.monotonic()
        deadline = began + spec.timeout_s if spec.timeout_s is not None else None
        watch = CommandWatch(outputs, deadline, began + LINGER_S, lingers)
        environment = self._environment(attempt, number)
        if began >= self._oom_kills_at + LOOK_S:
            self._oom_kills, self._oom_kills_at = count_oom_kills(), began
        try:
            code, overdue = 0, False
            with self._unpacked(attempt):
                for line, image in ((spec.before, ""), (spec.command, spec.container)):
                    if line:
                        code, overdue = self._run_line(line, attempt, environment, watch, image)
                    if code or overdue or self._stop_order:
                        break
                if spec.after:
                    environment |= {"POSTROOM_EXIT": str(code)}
                    after, late = self._run_line(spec.after, attempt, environment, watch)
                    code, overdue = code or after, overdue or late
        finally:
            for output in outputs:
                output.close()
        killed = code == -signal.SIGKILL or code == 128 + signal.SIGKILL
        return code, overdue, count_oom_kills() - self._oom_kills if killed else 0

    @contextlib.contextmanager
    def _unpacked(self, attempt: CommandAttempt) -> Iterator[None]:
        """Have the command's own copy of its snapshot; keep of it what the command wrote."""
        spec = attempt.spec
        if not spec.snapshot:
            yield
            return
        from .code_snapshot import UnpackedSnapshot  # late: few commands need it

        path = self._context.base.code_snapshot(attempt.run, spec.snapshot)
        copy = UnpackedSnapshot(path, spec.snapshot, f"{spec.folder}/{COPY}", attempt.cwd)
        self._with_space(copy.unpack)
        try:
            yield
        finally:
            os.chdir("/")
            copy.prune()

    def _environment(self, attempt: CommandAttempt, number: int) -> dict[str, str]:
        spec = attempt.spec
        own = self._submitted.over(self._environ) if spec.environment else self._environ
        granted = {**self._context.environment, **self._gpu_use.environment}
        return {
            **granted_over({**own, **spec.env}, granted),
            "POSTROOM_JOB": attempt.job_name,
            "POSTROOM_NAME": attempt.name,
            "POSTROOM_FOLDER": spec.folder,
            "POSTROOM_ATTEMPT": str(number),
            "SGE_TASK_ID": str(spec.number),
            **({"POSTROOM_SOURCE": spec.source} if spec.source else {}),
            **({"POSTROOM_CHECKPOINT": f"{spec.folder}/checkpoint"} if spec.checkpoint else {}),
        }

    def _run_line(
        self,
        line: str,
        attempt: CommandAttempt,
        environment: dict[str, str],
        watch: CommandWatch,
        image: str = "",
    ) -> tuple[int, bool]:
        """Run one shell line; return its exit code, negative for a signal, and if it was late."""
        if not image:
            return self._run_words([attempt.spec.shell, "-c", line], attempt, environment, watch)
        from . import container_launcher  # late: few commands need it

        name = f"postroom-{os.urandom(8).hex()}"
        inside = {**environment, container_launcher.NAME: name}
        words = container_launcher.launcher_words(image, ["/bin/sh", "-c", line])
        ended = False
        try:
            code, overdue = self._run_words(words, attempt, inside, watch)
            ended = code >= 0 and not overdue and self._stop_order is None
            return code, overdue
        finally:
            if not ended:  # its client was killed, or has not answered in time
                container_launcher.remove(name, inside)

    def _run_words(
        self,
        words: list[str],
        attempt: CommandAttempt,
        environment: dict[str, str],
        watch: CommandWatch,
    ) -> tuple[int, bool]:
        if self._stops:
            raise Stopped
        spec = attempt.spec
        if len(os.fsencode(words[-1])) >= LONG_LINE:
            script = f"{spec.folder}/{SCRIPT}"
            with open(script, "wb") as file:
                file.write(os.fsencode(words[-1]) + b"\n")
            words = [*words[:-2], script]
        if spec.nice:
            words = ["nice", "-n", str(spec.nice), *words]
        # This takes a third of the time of subprocess. All our descriptors close on exec, except
        # those that say that somebody of this session is alive, which the command inherits.
        os.chdir(attempt.cwd)
        child = os.posix_spawnp(
            self._find(words[0]),
            words,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, watch.outputs[0].fd, 1),
                (os.POSIX_SPAWN_DUP2, watch.outputs[-1].fd, 2),
            ],
            setsid=True,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores
        )
        ordered = self._stop_order
        overdue = self._wait(child, attempt, watch)
        killed = self._over and spec.over == "kill"
        if overdue or killed or self._stops or self._stop_order is not ordered:
            self._end_tree(spec.grace_s)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if reap():  # what a command leaves behind ends with it
            self._tell_left_behind(watch)
            self._end_tree(spec.grace_s)
        if self._stops:
            raise Stopped
        return status, overdue

    def _tell_excess(self, watch: CommandWatch, over: str) -> None:
        """Write into the command's log that it uses more GPU memory than is reserved."""
        self._over = self._gpu_use.exceeded
        then = "it is ended (--over kill)" if over == "kill" else "others may run out of memory"
        with contextlib.suppress(OSError):
            os.write(watch.outputs[-1].fd, f"[postroom: {self._over}: {then}]\n".encode())

    def _tell_left_behind(self, watch: CommandWatch) -> None:
        """Write into the command's stderr which of its processes are ended because it has."""
        found = ((pid, printable(command_line(pid))[:80]) for pid in sorted(self._below()))
        left = [f"{words} (pid {pid})" for pid, words in found if words]
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            self._left_behind = ", ".join(left[:5]) + more
            text = (
                f"[postroom: this command has ended and left processes behind, which are ended "
                f"now: {self._left_behind}; to let them finish, end the line with `wait`]\n"
            )
            with contextlib.suppress(OSError):
                os.write(watch.outputs[-1].fd, text.encode(errors="replace"))

    def _find(self, program: str) -> str:
        """The path of a program: searched once, since some commands take a millisecond."""
        found = self._programs.get(program)
        if found is None:
            found = shutil.which(program) or program
            if os.path.isabs(found):
                self._programs[program] = found
        return found

    def _wait(self, pid: int, attempt: CommandAttempt, watch: CommandWatch) -> bool:
        """Wait until a command ends, or must be ended; True when it is past its time limit."""
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            while not self._stops:
                now = time.monotonic()
                if watch.deadline is not None and now >= watch.deadline:
                    return True
                ready = {fd for fd, _ in poll.poll(watch.look_s(now) * 1000 + 1)}
                if pidfd in ready:
                    return False
                watch.look(time.monotonic())
                reap_orphans(pid)
                self._gpu_use.look()
                if self._gpu_use.exceeded and not self._over:
                    self._tell_excess(watch, attempt.spec.over)
                    if attempt.spec.over == "kill":
                        return False
                if self._stop_order is None:
                    self._look_for_stop(attempt)
                    if self._stop_order is not None:
                        return False
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(64)
            return False
        finally:
            os.close(pidfd)

    def _end_tree(self, grace_s: float) -> None:
        """End all processes below us: SIGTERM, then SIGKILL after the grace, until none is left.

        A process that was told to end may start another to save its work. That one is told only
        when its parent is gone. A second signal to us ends the grace.
        """
        kill_at = time.monotonic() + grace_s
        asked: set[int] = set()
        me = os.getpid()
        while left := self._below():
            late = time.monotonic() >= kill_at or self._stops > 1
            first = not asked
            for pid in left:
                ask = pid not in asked and (first or parent_of(pid) == me)
                if late or ask:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)  # a stopped process cannot obey
                    asked.add(pid)
            time.sleep(0.005)

    def _below(self) -> list[int]:
        """The processes that a command has started: all below us, without our helpers.

        A command has a session of its own (setsid), and nothing that it starts can join ours.
        """
        found = []
        for pid in set(below(os.getpid())) - self._helpers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) != os.getsid(0):
                    found.append(pid)
        return found

    # Publishing

    def _insist(self, action: Callable[[], bool]) -> bool:
        """Write what must be written. Wait while the disk is full; give up if the run is gone."""
        while True:
            try:
                if action():
                    return True
            except FileNotFoundError:
                self._journal.log(
                    "warning", "the run of a command was removed: its outcome is dropped"
                )
                return False
            except OSError as error:
                if not may_pass(error):
                    raise
                self._journal.log("error", f"an outcome waits to be written: {error.strerror}")
            if self._stops:
                return False
            time.sleep(BLOCKED_S)


def _ended_before(info: dict[str, str]) -> JobEnd:
    """How a command ended, as its folder says."""
    seconds = float(info["seconds"])
    facts = {"ended": info["ended"], "seconds": seconds, "outcome": info["outcome"]}
    return JobEnd(
        {"attempt": int(info["attempt"]), **facts, "exit": int(info["exit"])}, None, seconds
    )


def _ending(end: End, failure: Failure | None, seconds: float) -> dict[str, object]:
    exit_by = ("signal", end.signal) if end.code is None else ("exit", end.code)
    return {
        "ended": stamp(time.time()),
        "seconds": round(seconds, 6),
        "outcome": "ok" if failure is None else failure.kind,
        **({} if end.refused else {exit_by[0]: exit_by[1]}),
        **({"error": failure.message} if failure is not None else {}),
    }
