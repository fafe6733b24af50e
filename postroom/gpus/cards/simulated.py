"""Simulated cards for tests, demonstrations and machines without a GPU.

`POSTROOM_FAKE_GPUS=4x24G` makes the cards. With `POSTROOM_FAKE_GPUS_FOLDER` any process can change
them while others use them:

    folder/script.json        {"FAKE-1": {"problem": "lost: fell off the bus", "temperature": 91}}
    folder/claim-<...>        memory that a simulated job uses; locked until its process dies

So all code that reads the memory and the processes of a card sees what NVML would show. The script
can also make it show less, as it does in places:

    "pids": "elsewhere"       of another pid namespace, as in a container
    "pids": "none"            no processes at all, as under WSL
    "memory": "unknown"       processes, but not what they use
    "driver_mib": 450         memory that the driver keeps for itself
    "late_free_s": 2.0        a killed process's memory is free only so long after its death
    "linked": ["FAKE-2"]      the cards that NVLink joins with this one
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ...errors import GpuError
from ...system import processes
from ...system.shared_folder import lock_is_free, open_file
from .inventory import Card, Usage

SPEC = re.compile(r"(?:(\d+)x)?(\d+)([GM])(?::(.+))?")
FIELDS = {"name", "memory_mib", "used_mib", "utilisation", "temperature", "power", "problem"}
ELSEWHERE = 2**22  # is added to pids: Linux gives none so high


class OutOfMemory(GpuError):
    """A simulated card has less free memory than a simulated job claims."""


def cards(spec: str) -> list[Card]:
    """Make cards: `4x24G`, or `2x24G,2x80G:A100` for several kinds."""
    found: list[Card] = []
    for part in filter(None, (part.strip() for part in spec.split(","))):
        match = SPEC.fullmatch(part)
        if match is None:
            raise GpuError(f"POSTROOM_FAKE_GPUS={spec}: {part!r} is not like 4x24G or 2x80G:A100")
        count, size, unit, name = match.groups()
        memory_mib = int(size) * (1024 if unit == "G" else 1)
        for _ in range(int(count or 1)):
            index = len(found)
            card = Card(index, f"FAKE-{index}", name or "Simulated", memory_mib, "fake", used_mib=0)
            found.append(card)
    folder = os.environ.get("POSTROOM_FAKE_GPUS_FOLDER")
    return _apply_folder(found, folder) if folder else found


def script(folder: str, changes: dict[str, dict[str, Any]]) -> None:
    """Change fields of simulated cards, by uuid, for all processes; {} undoes all changes."""
    temporary = os.path.join(folder, f"new-{os.urandom(6).hex()}")
    with open(temporary, "x") as file:
        json.dump(changes, file)
    os.replace(temporary, os.path.join(folder, "script.json"))


class Claim:
    """Memory of a simulated card, used until the claim is closed or its process dies."""

    def __init__(self, uuid: str, memory_mib: int = 0, *, late_free_s: float = 0.0) -> None:
        """`late_free_s`: how long after the death of its process it is still used."""
        folder = os.environ.get("POSTROOM_FAKE_GPUS_FOLDER")
        if not folder:
            raise GpuError("claiming simulated memory needs POSTROOM_FAKE_GPUS_FOLDER to be set")
        self.uuid = uuid
        self.memory_mib = 0
        self._late_free_s = late_free_s
        self._folder = folder
        self._path = os.path.join(folder, f"claim-{os.urandom(6).hex()}")
        with _mutex(folder):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(0)
        try:
            self.resize(memory_mib)
        except OutOfMemory:
            self.close()
            raise

    def resize(self, memory_mib: int) -> None:
        """Use this much memory from now on; raise `OutOfMemory` if it is not free."""
        with _mutex(self._folder):
            card = next(
                card
                for card in cards(os.environ.get("POSTROOM_FAKE_GPUS", ""))
                if card.uuid == self.uuid
            )
            free_mib = card.memory_mib - (card.used_mib or 0) + self.memory_mib
            if memory_mib > free_mib:
                raise OutOfMemory(
                    f"simulated CUDA out of memory: {memory_mib} MiB on {self.uuid}, "
                    f"of which {free_mib} MiB are free"
                )
            self._write(memory_mib)
            self.memory_mib = memory_mib

    def _write(self, memory_mib: int) -> None:
        value: dict[str, Any] = {"uuid": self.uuid, "pid": os.getpid(), "used_mib": memory_mib}
        value["late_free_s"] = self._late_free_s
        os.pwrite(self._fd, json.dumps(value).ljust(200).encode(), 0)

    def close(self) -> None:
        """Release the memory."""
        with suppress(OSError):
            os.unlink(self._path)
            os.close(self._fd)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _apply_folder(found: list[Card], folder: str) -> list[Card]:
    """Return the cards with the changes of the script and the claims."""
    changes: dict[str, Any] = {}
    with suppress(OSError, ValueError), open(os.path.join(folder, "script.json")) as file:
        changes = json.load(file)
    usage: dict[str, list[Usage]] = {}
    late_mib: dict[str, int] = {}
    late_s = {uuid: float(change.get("late_free_s", 0)) for uuid, change in changes.items()}
    for uuid, process, dead in _claims(folder, late_s):
        if dead:
            late_mib[uuid] = late_mib.get(uuid, 0) + (process.used_mib or 0)
        else:
            usage.setdefault(uuid, []).append(process)
    changed = []
    for card in found:
        change = changes.get(card.uuid, {})
        others = [Usage(**process) for process in change.get("processes", ())]
        on_card = (*usage.get(card.uuid, ()), *others)
        used_mib = sum(process.used_mib or 0 for process in on_card) + late_mib.get(card.uuid, 0)
        plain = {key: value for key, value in change.items() if key in FIELDS}
        driver_mib = int(change.get("driver_mib", 0))
        card = card._replace(
            driver_mib=driver_mib,
            memory_mib=card.memory_mib - driver_mib,
            linked=tuple(change.get("linked", ())),
        )
        shown = _as_shown(on_card, change)
        changed.append(card._replace(**({"used_mib": used_mib, "processes": shown} | plain)))
    return changed


def _as_shown(on_card: tuple[Usage, ...], change: dict[str, Any]) -> tuple[Usage, ...]:
    """Return the processes as a driver shows them that knows less."""
    if change.get("pids") == "none":
        return ()
    if change.get("pids") == "elsewhere":
        on_card = tuple(
            usage._replace(pid=usage.pid + ELSEWHERE, user="?", command="?") for usage in on_card
        )
    if change.get("memory") == "unknown":
        on_card = tuple(usage._replace(used_mib=None) for usage in on_card)
    return on_card


def _claims(folder: str, late_s: Mapping[str, float]) -> Iterator[tuple[str, Usage, bool]]:
    """List the claims that use memory: the card, the process, and whether that is dead."""
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in sorted(os.listdir(folder_fd)):
            if not name.startswith("claim-"):
                continue
            fd = open_file(name, folder_fd)
            if fd is None:
                continue
            with open(fd, "rb") as file:
                dead = lock_is_free(fd)
                with suppress(ValueError, KeyError):
                    value = json.loads(file.read())
                    uuid, pid = str(value["uuid"]), int(value["pid"])
                    limit_s = max(late_s.get(uuid, 0.0), value["late_free_s"])
                    if dead and (not limit_s or _since(f"ended-{name}", folder_fd) >= limit_s):
                        continue
                    seen = processes.stat(pid)
                    user = processes.user_name(os.fstat(fd).st_uid)
                    command = seen.command if seen else "?"
                    yield uuid, Usage(pid, user, command, int(value["used_mib"])), dead
    finally:
        os.close(folder_fd)


def _since(name: str, folder_fd: int) -> float:
    """Return the seconds since this was first asked."""
    fd = os.open(name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=folder_fd)
    try:
        return max(0.0, time.time() - os.fstat(fd).st_mtime)
    finally:
        os.close(fd)


@contextmanager
def _mutex(folder: str) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
