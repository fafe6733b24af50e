"""A control group for the commands of a session: no process can leave it unnoticed.

A process that forks twice, drops its environment and closes the files that it inherited cannot be
found when its minder and its guardian are both killed: it has no known parent and no mark. If the
minder and all below it are in a control group of their own, Linux still knows it, and one write
ends them all. That needs a cgroup v2 tree in which we may make folders: as root, in a container
that has one, or under `systemd-run --user --scope`. Elsewhere commands run without.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time

from .absence import absent_is_fine, means_absent

# How long to wait until all are dead: a process may hang in a system call for a while.
_PATIENCE_S = 10.0


def make(mark: str) -> str:
    """Make the group of a session, named by its mark; return its path, or "" if that fails."""
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


def own(controller: str = "") -> str:
    """Our group in the tree of cgroup v2, or in that of a v1 controller; "": there is none."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
        inside = next(path for _, names, path in lines if controller in names.split(","))
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            root, place = next(filter(None, (_mounted(line, controller) for line in file)))
    except (OSError, StopIteration, ValueError):
        return ""
    # In a container the mount may begin at the container's group, and the path at the machine's.
    return f"{place}/{inside.removeprefix(root).strip('/')}".rstrip("/")


def _mounted(line: str, controller: str) -> tuple[str, str] | None:
    """Where a line of mountinfo mounts the tree, and from which group on; None: it does not."""
    _, _, _, root, place, *_, kind, _, options = line.split()
    v1 = kind == "cgroup" and controller in options.split(",")
    v2 = kind == "cgroup2" and not controller
    return (root.rstrip("/"), place) if v1 or v2 else None


def enter(path: str) -> None:
    """Move this process, and all that it will fork, into a group, if possible."""
    if path:
        with contextlib.suppress(FileExistsError, OSError):
            os.mkdir(path)  # `end` may have removed it
        with contextlib.suppress(OSError):
            _write(f"{path}/cgroup.procs", b"0")


def end(path: str, mark: str) -> int:
    """End all that is in the group of a session, and remove it; return how many there were.

    The path comes from a file, so only a group that this session can have made is touched.
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
    for folder, _, _ in os.walk(path, onerror=_unless_absent):
        with absent_is_fine(), open(f"{folder}/cgroup.procs", "rb") as file:
            found += [int(pid) for pid in file.read().split()]
    return found


def _unless_absent(error: OSError) -> None:
    if not means_absent(error):
        raise error


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):  # a process still hangs in it: the next call removes it
            os.rmdir(folder)


def _name(mark: str) -> str:
    return f"postroom-{hashlib.sha256(mark.encode()).hexdigest()[:20]}"
