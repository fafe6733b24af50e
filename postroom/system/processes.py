"""The identity of a process. A pid is reused, so start time, boot and namespace belong to it."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, NamedTuple

FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux, the same on every machine


def host_name() -> str:
    """The name of this host, as `socket.gethostname` says it; that module takes 4 ms to import."""
    return os.uname().nodename


class Process(NamedTuple):
    """One process; no other process of any boot or container is equal to it."""

    pid: int
    started_ticks: int
    boot_id: str
    pid_namespace: str

    def encode(self) -> dict[str, Any]:
        """Return what goes into a record."""
        return {
            "pid": self.pid,
            "started_ticks": self.started_ticks,
            "boot_id": self.boot_id,
            "pid_namespace": self.pid_namespace,
        }

    @classmethod
    def decode(cls, value: Any) -> Process:
        """Read what `encode` wrote; raise ValueError, KeyError or TypeError on anything else."""
        return cls(
            int(value["pid"]),
            int(value["started_ticks"]),
            str(value["boot_id"]),
            str(value["pid_namespace"]),
        )


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used here."""

    pid: int
    command: str
    state: str
    parent: int
    session: int
    started_ticks: int
    flags: int
    environ_start: int  # where its environment is in memory
    environ_end: int  # 0: it has none yet (exec), or no memory any more


def stat(pid: int) -> Stat | None:
    """Read one process; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, tail = file.read().rpartition(b")")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if not tail:
        return None
    # The command may contain spaces and brackets, so split only after the last bracket.
    fields = tail.split()
    return Stat(
        pid=pid,
        command=head.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        started_ticks=int(fields[19]),
        flags=int(fields[6]),
        environ_start=int(fields[47]),
        environ_end=int(fields[48]),
    )


def command_line(pid: int) -> str:
    """Return the words with which a process was started; "" if it is gone, or a kernel thread."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def current_umask() -> int:
    """Return our umask; `os.umask` would change it for a moment, under other threads' feet."""
    with open("/proc/self/status", "rb") as file:
        return int(file.read().partition(b"\nUmask:")[2].split(maxsplit=1)[0], 8)


def boot_id() -> str:
    """Return the id of this boot of this machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except FileNotFoundError:  # no other error: a process of "another boot" counts as dead
        return ""


def pid_namespace() -> str:
    """Return the name of our pid namespace."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def in_first_pid_namespace() -> bool:
    """Whether pids here are those of the machine: not in a container, nor under WSL."""
    return pid_namespace() == FIRST_PID_NAMESPACE


def identify(pid: int | None = None) -> Process | None:
    """Return the identity of a process (by default this one); None if it is gone."""
    pid = os.getpid() if pid is None else pid
    seen = stat(pid)
    if seen is None:
        return None
    return Process(pid, seen.started_ticks, boot_id(), pid_namespace())


def myself() -> Process:
    """Return the identity of this process."""
    found = identify()
    return found or Process(os.getpid(), 0, boot_id(), pid_namespace())


def alive(process: Process) -> bool | None:
    """Whether a process still runs; None if that cannot be seen from here."""
    if process.boot_id != boot_id():
        return False
    if process.pid_namespace != pid_namespace():
        return None
    seen = stat(process.pid)
    if seen is None and _is_hidden(process.pid):
        return None
    return (
        seen is not None
        and seen.state not in "ZX"
        and (process.started_ticks in (0, seen.started_ticks))
    )


def _is_hidden(pid: int) -> bool:
    """Whether a pid is in use, by a process of another user that /proc does not show (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        pass
    return False


def is_stopped(process: Process) -> bool:
    """Whether a process was stopped, by SIGSTOP or Ctrl-Z, and waits to be continued."""
    seen = stat(process.pid) if alive(process) else None
    return seen is not None and seen.state in "Tt"


def describe_pid(pid: int, namespace: str, host: str) -> str:
    """Return the words for a process; its pid means nothing outside its namespace."""
    here = namespace == pid_namespace()
    return f"pid {pid}" if here else f"pid {pid} in another container, on host {host}"


def ancestors(pid: int | None = None) -> list[int]:
    """List the ancestors of a process, nearest first."""
    found: list[int] = []
    seen = stat(os.getpid() if pid is None else pid)
    while seen is not None and seen.parent > 0 and seen.parent not in found:
        found.append(seen.parent)
        seen = stat(seen.parent)
    return found


def user_of(pid: int) -> str:
    """Return the user of a process, or `?` if it is not visible."""
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "?"


@cache
def user_name(uid: int) -> str:
    """Return the name of a user, or the number if there is no such account."""
    import pwd  # only where a name is shown or recorded

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
