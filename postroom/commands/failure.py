"""Why a command failed: from its exit code, its last output, and Linux's count of OOM kills."""

from __future__ import annotations

import enum
import re
import signal
from dataclasses import dataclass

from ..gpus.devices.faults import Fault, fault_in
from ..gpus.devices.out_of_memory import SAID
from ..parcel.sheets import Failure, Outcome
from ..system.oom_kills import OOM_MESSAGE

_HOST_MEMORY = re.compile(
    r"^MemoryError\b|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator: can't allocate"
    r"|_ArrayMemoryError",
    re.MULTILINE,
)
_CRASHES = {
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSYS,
    signal.SIGTRAP,
}
ALONE_ON_GPU = (
    "another process has the GPU for itself: compute mode EXCLUSIVE_PROCESS, as with --exclusive, "
    "lets only one process use it; a session's warm worker is that process, unless the session was "
    "started for commands only"
)
# A shell exits with 128 + n when signal n ended what it ran.
_SHELL_SIGNALS = 128


class Cause(enum.Enum):
    """Why a command failed."""

    GPU_MEMORY = SAID
    HOST_MEMORY = "out of host memory"
    KILLED = "killed from outside"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    MISSING = "missing program"
    GPU_LOST = "lost GPU"
    GPU_BUSY = "busy GPU"
    OVER = "over its GPU memory"
    NOT_STARTED = "not started"
    EXIT = "failed"


@dataclass(frozen=True)
class End:
    """What is known of a command's end."""

    code: int | None  # None: ended by a signal
    signal: int | None = None
    timed_out_s: float | None = None  # its time limit, when it was ended for that
    over: str = ""  # how it exceeded its GPU memory, when it was ended for that
    oom_kills: int = 0  # of the Linux out-of-memory killer while it ran
    out: str = ""
    err: str = ""
    on_gpu: bool = True
    refused: str = ""  # why it was not begun
    no_gpu: bool = False  # ... because no GPU is large enough for it

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.code == 0 and self.timed_out_s is None and not self.over


def explain(end: End) -> Failure | None:
    """Why a command failed; None when it succeeded."""
    if end.ok:
        return None
    cause = _cause(end)
    outcome = Outcome.TIMED_OUT if cause is Cause.TIMED_OUT else Outcome.FAILED
    return Failure(outcome, cause.value, _message(end, cause), end.err[-2000:])


def is_out_of_memory(end: End) -> bool:
    """Whether a command ran out of GPU memory."""
    return not end.ok and not end.refused and _cause(end) is Cause.GPU_MEMORY


def _cause(end: End) -> Cause:
    if end.refused:
        return Cause.GPU_MEMORY if end.no_gpu else Cause.NOT_STARTED
    if end.timed_out_s is not None:
        return Cause.TIMED_OUT
    if end.over:
        return Cause.OVER
    fault = fault_in(f"{end.out}\n{end.err}") if end.on_gpu else Fault.OTHER
    number = _signal_of(end)
    if fault is Fault.MEMORY:
        return Cause.GPU_MEMORY
    if _killed_for_memory(end) or _HOST_MEMORY.search(end.err):
        return Cause.HOST_MEMORY
    if fault in (Fault.CARD, Fault.MISSING):
        return Cause.GPU_LOST
    if fault is Fault.BUSY:
        return Cause.GPU_BUSY
    if number is not None:
        return Cause.CRASHED if number in _CRASHES else Cause.KILLED
    return Cause.MISSING if end.code in (126, 127) else Cause.EXIT


def _message(end: End, cause: Cause) -> str:
    if end.refused:
        return end.refused
    if end.over:
        return f"{end.over}; reserve more with --memory, or let it go on with --over warn"
    number = _signal_of(end)
    if cause is Cause.TIMED_OUT:
        how = f"took longer than its time limit of {end.timed_out_s:g} s"
    elif cause is Cause.HOST_MEMORY and _killed_for_memory(end):
        how = OOM_MESSAGE
    elif number is not None:
        how = f"ended by {_signal_name(number)}"
    else:
        how = f"exit code {end.code}"
    last = last_line(end.err) or last_line(end.out)
    said = f"{how}: {last}" if last else how
    return f"{said} ({ALONE_ON_GPU})" if cause is Cause.GPU_BUSY else said


def _killed_for_memory(end: End) -> bool:
    return _signal_of(end) == signal.SIGKILL and end.oom_kills > 0


def _signal_of(end: End) -> int | None:
    if end.signal is not None:
        return end.signal
    if end.code is not None and _SHELL_SIGNALS < end.code <= _SHELL_SIGNALS + 64:
        return end.code - _SHELL_SIGNALS
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(text: str, most: int = 300) -> str:
    """The last line that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:most] if lines else ""
