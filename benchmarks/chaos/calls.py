"""Kill at every system call, and fail at every one that can fail, with the real code.

    python -m benchmarks.chaos calls                       all of it
    python -m benchmarks.chaos calls --sample 150 --seed 1 so many, chosen by the seed

An operation runs in a forked process to which strace is attached, once to list its system calls,
then once for each call and fault: killed as it enters the call, or told that the call failed. Short
writes, and closes that fail, are made by a preloaded library: there the call has to happen, too.
Afterwards the operation's judge looks at what is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from postroom.errors import PostroomError

from .operations import OPERATIONS, Operation

BEGIN, END = "/postroom-begins", "/postroom-ends"
ERRORS = ("EIO", "ENOSPC", "EINTR", "ESTALE", "EACCES", "EMFILE")
# Calls on memory, clocks and signals: no file changes between them and their neighbours.
IDLE_CALLS = {
    *("brk", "mmap", "munmap", "mprotect", "madvise", "mremap", "futex", "getpid", "gettid"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "clock_gettime", "sched_yield"),
    *("exit_group", "getuid", "geteuid", "sysinfo", "uname", "getrandom", "poll", "getcwd"),
    *("select", "pselect6", "_newselect"),
}
SHORT = {"write", "pwrite64", "writev"}
HERE = os.path.dirname(os.path.abspath(__file__))
PR_SET_PTRACER = 0x59616D61


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong at one call of one operation."""

    operation: str
    call: str
    number: int  # the how-manieth of its like, since strace is there or the library was told
    kind: str  # "killed", "short", or the name of an error

    @property
    def preloaded(self) -> bool:
        """Whether the preloaded library makes it, not strace."""
        return self.kind == "short" or (self.call == "close" and self.kind != "killed")

    def __str__(self) -> str:
        return f"{self.operation}: {self.kind} at {self.call} number {self.number}"


@dataclass
class Struck:
    """A process that an operation ran in."""

    ended: str  # "killed", "done", "refused", or "crashed"
    words: str
    trace: str


def run(name: str, folder: str, fault: Fault | None) -> tuple[Operation, Struck]:
    """Prepare an operation, run it in a process of its own under a fault, and wait for its end."""
    operation: Operation = OPERATIONS[name]()
    operation.prepare(folder)
    told, tell = os.pipe()
    heard, hear = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.close(heard)
        _child(operation, folder, fault, ready=hear, go=told)
    os.close(told)
    os.close(hear)
    if not os.read(heard, 1):
        raise SystemExit(f"{name} did not get ready: {_read(f'{folder}/words')}")
    os.close(heard)
    trace = f"{folder}/trace"
    rule = []
    if fault is None:
        rule = ["-o", trace]
    elif not fault.preloaded:
        what = "signal=KILL" if fault.kind == "killed" else f"error={fault.kind}"
        rule = ["-o", trace, "-e", f"trace={fault.call}"]
        rule += ["-e", f"inject={fault.call}:{what}:when={fault.number}"]
    strace = _attach(pid, rule) if rule else None
    os.write(tell, b"go")
    os.close(tell)
    _, status = os.waitpid(pid, 0)
    if strace is not None:
        strace.wait()
    ended = "killed" if os.WIFSIGNALED(status) else _ENDS.get(os.WEXITSTATUS(status), "crashed")
    return operation, Struck(ended, _read(f"{folder}/words"), _read(trace))


_ENDS = {0: "done", 3: "refused"}


def _child(operation: Operation, folder: str, fault: Fault | None, *, ready: int, go: int) -> None:
    code = 4
    try:
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        operation.ready()
        os.write(ready, b".")
        # A call of its own kind: strace may count it twice, since attaching interrupts it.
        select.select([go], [], [])
        _marker(BEGIN)
        if fault is not None and fault.kind == "short":
            ctypes.CDLL(None).postroom_short_write_at(fault.number)
        elif fault is not None and fault.preloaded:
            ctypes.CDLL(None).postroom_close_fails_at(fault.number, getattr(errno, fault.kind))
        operation.act()
        _marker(END)
        operation.after()
        code = 0
    except PostroomError as error:
        code = 3
        _say(folder, str(error))
    except OSError as error:
        code = 3 if operation.may_raise else 4
        _say(folder, str(error) if operation.may_raise else traceback.format_exc())
    except BaseException:
        _say(folder, traceback.format_exc())
    finally:
        os._exit(code)


def _say(folder: str, words: str) -> None:
    with open(f"{folder}/words", "w") as file:
        file.write(words)


def _read(path: str) -> str:
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        return file.read()
    return ""


def _marker(path: str) -> None:
    with contextlib.suppress(OSError):
        os.readlink(path)


def _attach(pid: int, rule: list[str]) -> subprocess.Popen[bytes]:
    words = b""
    for _ in range(5):  # in some sandboxes Linux refuses now and then
        strace = subprocess.Popen(
            ["strace", "-p", str(pid), *rule], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert strace.stderr is not None
        words = strace.stderr.readline()
        if b"attached" in words:
            return strace
        strace.wait()
    state = _read(f"/proc/{pid}/stat").split(")")[-1][:3]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise SystemExit(f"strace cannot attach to a process in state {state}: {words.decode()}")


def calls_of(name: str) -> list[tuple[str, int]]:
    """The system calls of an operation in their order: each with its number among its like."""
    with tempfile.TemporaryDirectory(prefix="postroom-calls-") as folder:
        _, struck = run(name, folder, None)
    assert struck.ended == "done", f"{name} {struck.ended} with no fault: {struck.words}"
    found, counts, inside = [], Counter[str](), False
    for line in struck.trace.splitlines():
        match = re.match(r"(\w+)\(", line)
        if match is None:
            continue
        call = match[1]
        counts[call] += 1
        if END in line:
            found.append((call, counts[call]))
            break
        if inside and call not in IDLE_CALLS:
            found.append((call, counts[call]))
        inside = inside or BEGIN in line
    return found


def warm_up(names: list[str]) -> None:
    """Do everything once with no fault: what is imported or looked up late is not counted then."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix="postroom-calls-") as folder:
            operation, struck = run(name, folder, None)
            problems = operation.judge(struck.ended)
            assert struck.ended == "done" and not problems, f"{name}: {struck.words} {problems}"
        with tempfile.TemporaryDirectory(prefix="postroom-calls-") as folder:
            operation = OPERATIONS[name]()
            operation.prepare(folder)
            operation.ready()
            operation.act()


def faults_of(name: str) -> Iterator[Fault]:
    """Every fault that an operation has to survive."""
    calls = calls_of(name)
    for call, number in calls:
        yield Fault(name, call, number, "killed")
    closes = 0
    for call, number in calls[:-1]:
        closes += call == "close"
        for error in ERRORS:
            yield Fault(name, call, closes if call == "close" else number, error)
    writes = [call for call, _ in calls if call in SHORT]
    for number, call in enumerate(writes, start=1):
        yield Fault(name, call, number, "short")


def strike(fault: Fault) -> tuple[bool, list[str]]:
    """Let one fault happen; return whether it missed, and what is wrong afterwards.

    In a process of its own, so that whatever a fault leaves open or half done goes with it.
    """
    hear, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = _strike(fault)
        except BaseException:
            answer = False, [f"the harness failed:\n{traceback.format_exc()}"]
        with os.fdopen(say, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(say)
    with os.fdopen(hear) as file:
        missed, problems = json.load(file)
    os.waitpid(pid, 0)
    return missed, problems


def _strike(fault: Fault) -> tuple[bool, list[str]]:
    with tempfile.TemporaryDirectory(prefix="postroom-calls-", dir=_fast_folder()) as folder:
        operation, struck = run(fault.operation, folder, fault)
        # A scan of /proc, say, may have made a call less this time.
        missed = fault.kind == "killed" and struck.ended != "killed"
        if struck.ended == "crashed":
            return missed, [f"a traceback reached the user:\n{struck.words}"]
        if "\n" in struck.words.strip():
            return missed, [f"more than a sentence: {struck.words}"]
        try:
            return missed, operation.judge(struck.ended)
        except Exception:
            return missed, [f"recovery failed:\n{traceback.format_exc()}"]


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def preloaded() -> bool:
    """Whether short writes can be made here."""
    return hasattr(ctypes.CDLL(None), "postroom_short_write_at")


def preload(arguments: list[str]) -> int:
    """Start this program again with the shim, in a world of its own."""
    with tempfile.TemporaryDirectory(prefix="postroom-shim-") as folder:
        shim = f"{folder}/faults.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-o", shim, f"{HERE}/faults.c", "-ldl"],
            check=True,
        )
        environment = {**os.environ, "LD_PRELOAD": shim, "POSTROOM_FAKE_GPUS": "4x24G"}
        command = [sys.executable, "-m", "benchmarks.chaos", *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


def run_calls(*, sample: int | None, seed: int, only: str | None) -> dict[str, Any]:
    """Strike everywhere, or at so many places; return the table."""
    if shutil.which("strace") is None:
        raise SystemExit("strace is needed, and is not installed")
    names = [only] if only else list(OPERATIONS)
    warm_up(names)
    faults = [fault for name in names for fault in faults_of(name)]
    table: dict[str, Any] = {
        "system calls": sum(fault.kind == "killed" for fault in faults),
        "faults known": len(faults),
    }
    if sample is not None and sample < len(faults):
        faults = random.Random(seed).sample(faults, sample)
    violations = misses = 0
    for fault in faults:
        missed, problems = strike(fault)
        misses += missed
        violations += bool(problems)
        for problem in problems:
            print(f"{fault}: {problem}", file=sys.stderr, flush=True)
    tried = Counter(fault.kind for fault in faults)
    table |= {"tried": len(faults)} | {f"tried: {kind}": n for kind, n in sorted(tried.items())}
    table |= {f"of {name}": sum(f.operation == name for f in faults) for name in names}
    good = not violations and misses <= len(faults) // 20
    return {**table, "missed": misses, "violations": violations, "seed": seed, "good": good}
