"""A control group for the commands of a session: what nothing that runs in it can leave unseen.

Whatever forks twice and drops its environment is lost sight of when its minder and its guardian
are both killed: no parent knows it, and no mark. The kernel still does, if the minder and all below
it were in a group of their own, which is ended by one word. That takes a cgroup v2 tree in which we
may make folders: as root, in a container that has one, or under `systemd-run --user --scope`.
Elsewhere it goes without.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time

from .absence import absent_is_fine

# Between the word and the death of the last: some may hang in the kernel for a while.
_PATIENCE_S = 10.0


def make(mark: str) -> str:
    """Make the group of a session, named by its mark; return its path, or "" where none can be."""
    above = own()
    path = path_of(mark)
    if not above:
        return ""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if os.access(f"{above}/cgroup.procs", os.W_OK) and os.access(
            f"{path}/cgroup.kill", os.W_OK
        ):
            return path
        os.rmdir(path)
    except OSError:
        pass
    return ""


def path_of(mark: str) -> str:
    """Where the group of a session is, if it was made from where we are."""
    return f"{own()}/{_name(mark)}"


def own() -> str:
    """The group that this process is in; "" where there is no cgroup v2."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            inside = next(line.strip()[3:] for line in file if line.startswith("0::"))
        with open("/proc/self/mounts", encoding="utf-8") as file:
            place = next(line.split()[1] for line in file if line.split()[2] == "cgroup2")
    except (OSError, StopIteration, IndexError):
        return ""
    return f"{place}{inside}".rstrip("/")


def enter(path: str) -> None:
    """Go into a group, with all that is forked from here on; if that fails, it goes without."""
    if path:
        with contextlib.suppress(FileExistsError, OSError):
            os.mkdir(path)  # it goes with the last command that had to be ended in it
        with contextlib.suppress(OSError):
            _write(f"{path}/cgroup.procs", b"0")


def end(path: str, mark: str) -> int:
    """End all that is in the group of a session, and remove it; return how many there were.

    The path comes from a file: only what this session can have made is touched.
    """
    if not path or os.path.basename(path) != _name(mark) or not os.path.isdir(path):
        return 0
    ended: set[int] = set()
    give_up_at = time.monotonic() + _PATIENCE_S
    while (left := members(path)) and time.monotonic() < give_up_at:
        ended.update(left)
        with contextlib.suppress(OSError):
            _write(f"{path}/cgroup.kill", b"1")
        time.sleep(0.002)
    _remove(path)
    return len(ended)


def members(path: str) -> list[int]:
    """The processes in a group and in those below it."""
    found = []
    for folder, _, _ in os.walk(path):
        with absent_is_fine(), open(f"{folder}/cgroup.procs", "rb") as file:
            found += [int(pid) for pid in file.read().split()]
    return found


def _write(path: str, word: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        os.write(fd, word)
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):  # somebody hangs in it still: the next one removes it
            os.rmdir(folder)


def _name(mark: str) -> str:
    return f"postroom-{hashlib.sha256(mark.encode()).hexdigest()[:20]}"
