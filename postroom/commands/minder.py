"""The minder: the small parent of one command at a time, which outlives the rest of us.

    guardian --fork--> minder --bash -c LINE--> the command and all that it starts
       |  ^               |
       |  '-- "done" -----|---> result_pool/<run>/<job>.npz, and the job's folder
       '---- errand ----->'

It is forked from the guardian without exec, so it costs a millisecond, and is kept for the next
command. It shares the agent's lock: while it lives, the agent is not dead, its letter is nobody
else's, and no second guardian can take its place. So `kill -9` of worker, guardian and Master
changes nothing for a command: it goes on, its minder waits for it, publishes how it ended and
leaves, and then the lock is free.

When a job is to die, all of it dies. The minder is a subreaper, so whatever the command starts,
however it forks, stays below it: SIGTERM, a grace, SIGKILL, until nothing is left. If the minder
itself is killed, the mark in the environment finds what it leaves (`tree.sweep`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import CardHeld, PostroomError
from ..parcel.sheets import Failure, JobEnd, Outcome, RanBy
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.journal import Journal
from ..store.requests import StopOrder, read_stop
from ..store.runs import RunInfo, read_run_info
from ..system import cgroups
from ..system.fork import SIGNALS, fork_unheard, hear_signals, settle_in
from ..system.process_tree import MARK, adopt_orphans, below, mark_of, parent_of, reap
from .attempt import GO_ON, LINGER_S, AttemptEnd, CommandAttempt, Stopped
from .failure import Cause, End, count_oom_kills, explain, is_out_of_memory
from .gpu_use import GpuUse
from .job_folder import CappedLog, JobFolder, stamp
from .outcome_record import record

# How often a long output is trimmed, and orphans are reaped.
LOOK_S = 0.5
# A full disk is tried again after this long.
BLOCKED_S = 0.5


@dataclass(frozen=True)
class MinderContext:
    """Where a minder is posted: the base, the agent, and what pins a command to its card."""

    base: Base
    agent: str
    environment: dict[str, str]
    lease_fds: tuple[int, ...]
    lock_fd: int
    cgroup: str = ""
    shares: bool = False  # no card of its own: each command books its part of one


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
        """Trim what has grown too long, and say once that it takes long."""
        if self.lingers is not None and now >= self.lingers_at:
            lingers, self.lingers = self.lingers, None
            lingers()
        for output in self.outputs:
            output.trim()


def fork_minder(post: MinderContext) -> tuple[int, socket.socket]:
    """Start a minder; return its pid and the line over which it takes errands.

    The caller must have one thread only. It holds its own copy of the lock, and of nothing else.
    """
    ours, theirs = socket.socketpair()
    lock = os.dup(post.lock_fd)
    pid = fork_unheard()
    if pid:
        theirs.close()
        os.close(lock)
        return pid, ours
    try:
        settle_in({lock, theirs.fileno(), *post.lease_fds})
        cgroups.enter(post.cgroup)
        Minder(post, theirs).serve()
    except BaseException:
        with contextlib.suppress(BaseException):
            Journal(post.base, f"minder {post.agent}").log("error", traceback.format_exc())
        os._exit(1)
    os._exit(0)


class Minder:
    """Takes errands, one after another."""

    def __init__(self, post: MinderContext, line: socket.socket | None) -> None:
        adopt_orphans()
        self._post = post
        self._line = line
        self._files = LocalFiles()
        self._journal = Journal(post.base, f"minder {post.agent}")
        self._info: RunInfo | None = None
        self._stops = 0
        self._told: StopOrder | None = None  # to end the command in hand
        self._host = socket.gethostname()
        self._programs: dict[str, str] = {}
        self._oom_kills = 0  # when it was last looked, at most so long before a command began
        self._oom_kills_at = -LOOK_S
        self._room: GpuUse
        self._helpers: set[int] = set()  # processes below us that are no command's
        for fd in post.lease_fds:
            os.set_inheritable(fd, True)  # the card is free when the last of them is gone
        self._environ = {**os.environ, MARK: mark_of(post.base.root, post.agent)}
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

    def serve(self) -> None:
        """Carry out what comes over the line, until its other end is gone."""
        waiting = b""
        assert self._line is not None
        while not self._stops:
            try:
                data = self._line.recv(1 << 20)
            except ConnectionError:
                return
            if not data:
                return
            waiting += data
            *lines, waiting = waiting.split(b"\n")
            for line in lines:
                word = self.carry_out(CommandAttempt.decode(line))
                with contextlib.suppress(OSError):  # the guardian may be gone: the result counts
                    self._line.sendall(json.dumps({"ended": word}).encode() + b"\n")

    def carry_out(self, errand: CommandAttempt) -> str:
        """Run one command to its end, and say so where it counts; return what was written."""
        started_at = time.time()
        try:
            ended = self.perform(errand)
        except Stopped:
            return "stopped"
        ran_by = RanBy(errand.agent, errand.gpu, os.getpid(), started_at, errand.attempt)

        def write() -> bool:
            if self._info is None or self._info.run != errand.run:
                self._info = read_run_info(self._files, self._post.base, errand.run)
            info, base = self._info, self._post.base
            return record(self._files, base, info, errand, ended, ran_by, at=time.time())

        return "done" if self._insist(write) else "dropped"

    def perform(
        self, errand: CommandAttempt, lingers: Callable[[], None] = lambda: None
    ) -> AttemptEnd:
        """Run one command to its end, and tell of it in its folder; publishing is up to the caller.

        A command that has ended well, and whose outcome did not get so far, is not run again.
        """
        folder = JobFolder(errand.folder)
        began, started_at = time.monotonic(), time.time()
        number = 0
        self._told = None
        self._room = GpuUse(self._post.base, errand, self._post.environment.get("POSTROOM_GPU", ""))
        try:
            if folder.has_ended_well(errand.job_name):
                return AttemptEnd(_ended_before(folder.read_info()))
            if self._post.shares or errand.elsewhere:
                self._wait_for_room(errand, lingers)
                began, started_at = time.monotonic(), time.time()
            number, outputs = self._prepare(errand, folder, started_at)
            code, overdue, oom_kills = self._run(errand, number, outputs, lingers)
            said = folder.tails() if code or overdue else ("", "")
            end = End(
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                timed_out_s=errand.timeout_s if overdue else None,
                oom_kills=oom_kills,
                out=said[0],
                err=said[1],
                on_gpu=errand.gpu != "cpu",
            )
        except Stopped:
            self._room.close()
            if number:
                folder.end({"ended": stamp(time.time()), "outcome": "stopped"})
            raise
        except PostroomError as error:
            end = End(code=None, refused=f"{error}")
            number, outputs = self._prepare(errand, folder, started_at)
            for output in outputs:
                output.close()
        except OSError as error:
            # No folder to run in, no shell, no more processes: told like any other failure.
            end = End(code=126, err=f"{error}")
        seconds = time.monotonic() - began
        memory = self._room.finish(
            ok=end.ok, out_of_memory=is_out_of_memory(end), timeline=folder.timeline
        )
        failure, again = self._judge(errand, end)
        facts = {**_ending(end, failure, seconds), **memory}
        folder.end(facts, ok=failure is None if again != "stopped" else None)
        self._journal.event(
            "command",
            run=errand.run,
            job=errand.job,
            attempt=errand.attempt,
            outcome=facts["outcome"],
            seconds=facts["seconds"],
        )
        done = JobEnd(None if failure else {"attempt": number, **facts}, failure, seconds)
        return AttemptEnd(done, again)

    def _judge(self, errand: CommandAttempt, end: End) -> tuple[Failure | None, str | None]:
        """Why a command failed, if it did, and the kind of note that has it tried again."""
        failure, told = explain(end), self._told
        if failure is None:
            return None, None
        if told is not None and told.final:
            return Failure(Outcome.CANCELLED, "cancelled", told.reason), None
        if told is not None:
            return Failure(Outcome.CANCELLED, "stopped", told.reason), "stopped"
        if end.timed_out_s is not None and end.code == GO_ON:
            reason = f"past its {end.timed_out_s:g} s, to go on from its checkpoint"
            return Failure(Outcome.TIMED_OUT, "stopped", reason), "stopped"
        if failure.kind == Cause.GPU_LOST.value:
            return failure, "lost"
        again = errand.failed < errand.retries and not self._room.hopeless and not end.refused
        return failure, "failed" if again else None

    # Running

    def _wait_for_room(self, errand: CommandAttempt, lingers: Callable[[], None]) -> None:
        """Wait for a part of a card; raises Stopped when that is given up."""
        waited = CommandWatch((), None, time.monotonic() + LINGER_S, lingers)

        def wanted() -> bool:
            waited.look(time.monotonic())
            self._look_for_stop(errand)
            return not self._stops and self._told is None

        try:
            self._room.book(shares=self._post.shares, wanted=wanted)
        except CardHeld:
            if self._told is None:
                raise Stopped from None
            raise
        self._helpers = set(below(os.getpid()))  # a ledger may have given its lease a process

    def _look_for_stop(self, errand: CommandAttempt) -> None:
        """See whether somebody wants the command in hand to end."""
        if self._told is None:
            self._told = read_stop(
                self._files, self._post.base, errand.run, errand.job, errand.attempt
            )

    def _prepare(
        self, errand: CommandAttempt, folder: JobFolder, started_at: float
    ) -> tuple[int, tuple[CappedLog, CappedLog]]:
        """Make the folder and the files that a command writes to; a full disk is waited for."""
        while True:
            try:
                number = folder.begin()
                beginning = self._beginning(errand, number, started_at)
                folder.tell({**beginning, **self._room.facts})
                if errand.checkpoint:
                    os.makedirs(folder.checkpoint, exist_ok=True)
                out = CappedLog(folder.out, errand.output_bytes)
                return number, (out, CappedLog(folder.err, errand.output_bytes))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._journal.log("error", f"a command waits for room: {error.strerror}")
            if self._stops:
                raise Stopped
            time.sleep(BLOCKED_S)

    def _beginning(
        self, errand: CommandAttempt, number: int, started_at: float
    ) -> dict[str, object]:
        return {
            "name": errand.name,
            "command": errand.command,
            "folder": errand.cwd,
            "gpu": errand.gpu_name or errand.gpu,
            "host": self._host,
            "job": errand.job_name,
            "agent": errand.agent,
            "attempt": number,
            **({"arguments": json.dumps(errand.arguments)} if errand.arguments else {}),
            "started": stamp(started_at),
        }

    def _run(
        self,
        errand: CommandAttempt,
        number: int,
        outputs: tuple[CappedLog, CappedLog],
        lingers: Callable[[], None],
    ) -> tuple[int, bool, int]:
        """Run a command and what belongs to it; return its exit code, whether it was late, and how
        many processes the kernel has ended meanwhile for want of memory."""
        began = time.monotonic()
        deadline = began + errand.timeout_s if errand.timeout_s is not None else None
        watch = CommandWatch(outputs, deadline, began + LINGER_S, lingers)
        environment = self._environment(errand, number)
        if began >= self._oom_kills_at + LOOK_S:
            self._oom_kills, self._oom_kills_at = count_oom_kills(), began
        try:
            code, overdue = 0, False
            for line in filter(None, (errand.before, errand.command)):
                code, overdue = self._run_line(line, errand, environment, watch)
                if code or overdue or self._told:
                    break
            if errand.after:
                environment |= {"POSTROOM_EXIT": str(code)}
                after, late = self._run_line(errand.after, errand, environment, watch)
                code, overdue = code or after, overdue or late
        finally:
            for output in outputs:
                output.close()
        killed = code == -signal.SIGKILL or code == 128 + signal.SIGKILL
        return code, overdue, count_oom_kills() - self._oom_kills if killed else 0

    def _environment(self, errand: CommandAttempt, number: int) -> dict[str, str]:
        return {
            **self._environ,
            **errand.env,
            **self._post.environment,
            **self._room.environment,
            "POSTROOM_JOB": errand.job_name,
            "POSTROOM_NAME": errand.name,
            "POSTROOM_FOLDER": errand.folder,
            "POSTROOM_ATTEMPT": str(number),
            "SGE_TASK_ID": str(errand.number),
            **({"POSTROOM_CHECKPOINT": f"{errand.folder}/checkpoint"} if errand.checkpoint else {}),
        }

    def _run_line(
        self, line: str, errand: CommandAttempt, environment: dict[str, str], watch: CommandWatch
    ) -> tuple[int, bool]:
        """Run one shell line; return its exit code, negative for a signal, and if it was late."""
        if self._stops:
            raise Stopped
        words = [errand.shell, "-c", line]
        if errand.nice:
            words = ["nice", "-n", str(errand.nice), *words]
        # A third of what subprocess takes. All our descriptors close by themselves, but for those
        # of the card's lease, which the command is to inherit.
        os.chdir(errand.cwd)
        child = os.posix_spawnp(
            self._find(words[0]),
            words,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, watch.outputs[0].fd, 1),
                (os.POSIX_SPAWN_DUP2, watch.outputs[1].fd, 2),
            ],
            setsid=True,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores
        )
        told = self._told
        overdue = self._wait(child, errand, watch)
        if overdue or self._stops or self._told is not told:
            self._end_tree(errand.grace_s)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if reap():
            self._end_tree(errand.grace_s)  # what a command leaves behind ends with it
        if self._stops:
            raise Stopped
        return status, overdue

    def _find(self, program: str) -> str:
        """Where a program is: looked for once, since there are commands of a millisecond."""
        found = self._programs.get(program)
        if found is None:
            found = shutil.which(program) or program
            if os.path.isabs(found):
                self._programs[program] = found
        return found

    def _wait(self, pid: int, errand: CommandAttempt, watch: CommandWatch) -> bool:
        """Wait until a command ends, or has to; True when it is past its time."""
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
                _reap_orphans(pid)
                self._room.look()
                if self._told is None:
                    self._look_for_stop(errand)
                    if self._told is not None:
                        return False
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(64)
            return False
        finally:
            os.close(pidfd)

    def _end_tree(self, grace_s: float) -> None:
        """End all that is below us: politely, then not, until nothing is left.

        What is started after that by somebody who was asked may be what saves its work, so it is
        asked only when its parent is gone. Who tells us twice to stop has no patience left.
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
        """What a command has started and left: all that is below us, but for our own.

        A command has a session of its own, and nothing that it starts can come back into ours.
        """
        found = []
        for pid in set(below(os.getpid())) - self._helpers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) != os.getsid(0):
                    found.append(pid)
        return found

    # Saying so

    def _insist(self, action: Callable[[], bool]) -> bool:
        """Write what must be written; a full disk is waited for, a run that is gone is not."""
        while True:
            try:
                if action():
                    return True
            except FileNotFoundError:
                self._journal.log("warning", "the run of a command is gone: its outcome is dropped")
                return False
            except OSError as error:
                self._journal.log("error", f"an outcome waits to be written: {error.strerror}")
            if self._stops:
                return False
            time.sleep(BLOCKED_S)


def _ended_before(info: dict[str, str]) -> JobEnd:
    """How a command ended, from what its folder says."""
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


def _reap_orphans(child: int) -> None:
    """Take note of dead orphans, but leave the command itself to be waited for."""
    with contextlib.suppress(ChildProcessError):
        while True:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is None or seen.si_pid == child:
                return
            os.waitpid(seen.si_pid, os.WNOHANG)
