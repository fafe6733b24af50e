"""Each job finds the process as every other job found it.

Kernels run in the worker itself. What a kernel changes of the process, and leaves changed, is put
back when it returns: the working folder, the environment, signal handlers, an alarm, the umask,
replaced standard streams and lowered soft limits. What cannot be put back (a hard limit, a lower
priority, descriptors of ours that it closed) ends the worker, and the next job gets a new one.

What a kernel sets in torch is put back as well, see `torch_state`; `job_seed` says which random
numbers each job draws.

What importing a kernel's module changes belongs to the kernel: it stays for its jobs. So do modules
and what they keep (`sys.path`, warning filters, logging): that is what a warm session is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from _signal import getsignal  # type: ignore[import-not-found]  # see `restore`
from typing import Any

from ..gpus.devices.device import Device
from .torch_state import TorchState

# The exit code of a worker whose descriptors were closed by its job.
SPOILT = 73
# Those that a program handles. All 64 would cost 8 us for each job.
_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGCHLD, signal.SIGPIPE,
)  # fmt: skip
_JOB = b"POSTROOM_JOB"
_LONGEST = 200  # bytes of the variable, with its name
# Where a marked descriptor stands. Nobody reads or writes there.
_POSITION = 0x706F7374


def mark(fd: int) -> int:
    """Mark a descriptor, so that `restore` sees whether it was closed, or belongs to another file.

    Its position is the mark: that costs a fifth of `fstat`. It must be used with pread and pwrite.
    """
    os.lseek(fd, _POSITION, os.SEEK_SET)
    return fd


class ProcessState:
    """What a kernel can change of its worker's process."""

    def __init__(self) -> None:
        self.used_up = ""  # why no other job may run in this process
        self.device = Device()  # what its jobs compute on
        self.torch = TorchState()
        self._job: memoryview | None = None  # the variable as the C library finds it
        self.save()

    def save(self) -> None:
        """From now on, this is how every job finds the process."""
        self._folder = _current_folder()
        self._environ: dict[Any, Any] = dict(_environ())
        self._handlers = tuple(map(getsignal, _SIGNALS))
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._limits = _limits()
        self._priority = os.getpriority(os.PRIO_PROCESS, 0)
        self.torch.save(self.device)

    def set_variable(self, name: str, value: str) -> None:
        """Set a variable of the environment for the next jobs."""
        os.environ[name] = value
        self._environ[name.encode()] = value.encode()

    def set_job(self, job: bytes) -> None:
        """Set POSTROOM_JOB for the next job."""
        # In its place: `os.environ` takes four times as long, and the C library keeps each value.
        _environ()[_JOB] = self._environ[_JOB] = job
        if self._job is None:
            self._job = _own_variable()
        self._job[: len(job) + 1] = job + b"\0"

    def restore(self, descriptor: int = -1) -> None:
        """Put back what a job changed; end the process if the job closed a marked descriptor.

        Nothing is written before that is known: it might go into a file of the job's.
        """
        # Without calls of our own where nothing has changed: this is done after every job.
        try:
            if descriptor >= 0 and os.lseek(descriptor, 0, os.SEEK_CUR) != _POSITION:
                os._exit(SPOILT)
        except OSError:
            os._exit(SPOILT)
        try:
            moved = os.getcwd() != self._folder
        except FileNotFoundError:
            moved = True
        if moved:
            with contextlib.suppress(OSError):  # it was removed
                os.chdir(self._folder)
        # Comparing the dict itself takes 0.5 us; `os.environ` would decode every variable, in 30.
        if os.environ._data != self._environ:  # type: ignore[attr-defined]
            self._restore_environment()
        # `signal.getsignal` makes enums, and takes ten times as long.
        if tuple(map(getsignal, _SIGNALS)) != self._handlers:
            self._restore_handlers()
        os.umask(self._umask)
        if (sys.stdin, sys.stdout, sys.stderr) != self._streams:
            sys.stdin, sys.stdout, sys.stderr = self._streams
        if "resource" in sys.modules:
            self._restore_limits()
        if os.getpriority(os.PRIO_PROCESS, 0) != self._priority:
            self._restore_priority()
        if self.torch.watching:
            self.torch.restore(self.device)
            self.used_up = self.used_up or self.torch.used_up

    def _restore_environment(self) -> None:
        for name in _environ().keys() - self._environ.keys():
            del os.environb[name]
        for name, value in self._environ.items():
            if os.environb.get(name) != value:
                os.environb[name] = value
        if self._job is not None:
            _own_variable()

    def _restore_handlers(self) -> None:
        signal.alarm(0)  # the code that sets an alarm handles it
        for number, handler in zip(_SIGNALS, self._handlers, strict=True):
            if handler is not None and getsignal(number) != handler:
                signal.signal(number, handler)

    def _restore_limits(self) -> None:
        import resource

        for limit, before in self._limits.items():
            if resource.getrlimit(limit) != before:
                try:
                    resource.setrlimit(limit, before)
                except (OSError, ValueError):
                    self.used_up = "a job lowered a hard limit of the process (resource.setrlimit)"

    def _restore_priority(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, self._priority)
        except OSError:
            self.used_up = "a job lowered the priority of the process (os.nice)"


# POSTROOM_JOB as the C library keeps it: it reads this as long as the process lives.
_variable: Any = None


def _own_variable() -> memoryview:
    """Make POSTROOM_JOB a variable whose value can be changed in its place, which this returns."""
    global _variable
    import ctypes

    if _variable is None:
        _variable = ctypes.create_string_buffer(_JOB + b"=", _LONGEST)
    ctypes.CDLL(None).putenv(_variable)
    return memoryview(_variable).cast("B")[len(_JOB) + 1 :]


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _environ() -> dict[Any, Any]:
    return os.environ._data  # type: ignore[attr-defined, no-any-return]


# The module that asks for limits, for us alone: see `_limits`.
_resource: Any = None


def _limits() -> dict[int, tuple[int, int]]:
    """The limits of this process.

    The module that changes them is forgotten again, unless somebody uses it: while it is not
    loaded, no kernel has changed a limit, and `restore` saves the 16 system calls.
    """
    global _resource
    if _resource is None:
        loaded = "resource" in sys.modules
        import resource as _resource

        if not loaded:
            del sys.modules["resource"]
    names = [name for name in dir(_resource) if name.startswith("RLIMIT_")]
    return {n: _resource.getrlimit(n) for n in {getattr(_resource, name) for name in names}}
