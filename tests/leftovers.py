"""What a test has left behind: open descriptors, processes, threads."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import time

# What is ending may take this long, on a busy machine, before it counts as left behind.
PATIENCE_S = 30.0
# What stays for more than one test: a part of its name, and why.
ALLOWED = {
    "thread simulated process": "the simulation lends its threads to one process after another",
    "thread AnyIO worker thread": "a web client of a whole module starts it with its first request",
    "thread asyncio_": "the same",
    "thread reader_": "the same: it reads the queue for that client, and ends with it",
    "module-executor": "an Executor of a whole module starts workers and opens mailboxes anew",
    "thread postroom calls": "the thread of such an Executor",
    "resource_tracker": "joblib starts one for its files; it ends with this process",
    "redis-server": "one server for all tests, which the first that needs it starts",
}


class Leftovers:
    """Compares what is open and alive now with a moment before."""

    def __init__(self, mark: str) -> None:
        """`mark` is in the environment of every process that the test starts."""
        self._mark = mark.encode()
        self._before = set(self._open())
        self._old = set(os.listdir("/proc"))

    def find(self) -> list[str]:
        """What is new, and does not go away."""
        if not (found := self._new()):
            return []
        gc.unfreeze()  # a verb that was called in this process has frozen what was there
        give_up_at = time.monotonic() + PATIENCE_S
        gc.collect()
        while (found := self._new()) and time.monotonic() < give_up_at:
            time.sleep(0.01)
            gc.collect()  # again: a thread that ends may have been the last to refer to a cycle
        return found

    def _new(self) -> list[str]:
        new = [text for name, text in self._open().items() if name not in self._before]
        subprocess._cleanup()  # what its next start waits for: children whose Popen was dropped
        found = [*new, *self._processes()]
        return sorted(text for text in found if not any(part in text for part in ALLOWED))

    def _open(self) -> dict[str, str]:
        """Every descriptor and thread, by an identity of its own."""
        found = {f"thread {id(t)}": f"thread {t.name}" for t in threading.enumerate()}
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except FileNotFoundError:  # of the listing itself
                continue
            found[f"descriptor {fd} {target}"] = f"descriptor {fd}: {target}"
        return found

    def _processes(self) -> list[str]:
        """Children, also dead ones that nobody has waited for, and marked processes."""
        found = []
        for pid in set(os.listdir("/proc")) - self._old:
            try:
                with open(f"/proc/{pid}/stat") as file:
                    child = int(file.read().rpartition(")")[2].split()[1]) == os.getpid()
                line = self._read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
                continue
            if child or self._mark in self._read(pid, "environ"):
                found.append(f"process {pid}: {line or 'dead, and nobody has waited for it'}")
        return found

    @staticmethod
    def _read(pid: str, name: str) -> bytes:
        """A file of a process; empty for the dead ones, and for those of others."""
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                return file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return b""
