"""The text of a lease: lines of JSON. The request comes first, then the grant, then changes."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

from ...system import processes
from ...system.processes import Process
from .protocol import LeaseEntry, LeaseRequest

VERSION = 1
UNREADABLE = "(unreadable record)"
# Have requests of this process not mind who uses a card without a lease.
BESIDE = "POSTROOM_BESIDE_STRANGERS"


def new_entry(request: LeaseRequest, among: tuple[str, ...], count: int) -> LeaseEntry:
    """Make the entry of a new request."""
    uid = os.geteuid()
    return LeaseEntry(
        lease_id=f"{time.time_ns() // 1_000_000:x}-{os.urandom(4).hex()}",
        uid=uid,
        user=processes.user_name(uid),
        process=request.owner or processes.myself(),
        name=request.name,
        group=request.group,
        count=count,
        among=among,
        memory_mib=request.memory_mib,
        asked_at=time.time(),
        host=os.uname().nodename,
        lasts_s=request.lasts_s,
        beside=request.beside or told_beside(),
        yields=request.yields,
    )


def told_beside() -> bool:
    """Whether the environment says not to mind who uses a card without a lease."""
    return os.environ.get(BESIDE, "") not in ("", "0", "no")


def encode_request(entry: LeaseEntry) -> bytes:
    """Return the first line of an entry."""
    return _line(
        {
            "version": VERSION,
            "lease_id": entry.lease_id,
            "user": entry.user,
            "host": entry.host,
            "process": entry.process.encode(),
            "name": entry.name,
            "group": entry.group,
            "count": entry.count,
            "among": entry.among,
            "memory_mib": entry.memory_mib,
            "asked_at": entry.asked_at,
            **({} if entry.lasts_s is None else {"lasts_s": entry.lasts_s}),
            **({"beside": True} if entry.beside else {}),
            **({"yields": True} if entry.yields else {}),
        }
    )


def encode_change(changes: dict[str, Any]) -> bytes:
    """Return a further line: `cards` and `granted_at`, or any other field that may change."""
    return _line({key: v.encode() if isinstance(v, Process) else v for key, v in changes.items()})


def decode(text: bytes, uid: int) -> LeaseEntry | None:
    """Read an entry of user `uid`; None if it is not valid.

    The user is the owner of the file, not what the text says, so nobody can forge an entry.
    """
    try:
        # A line without its end is still being written: ignore it.
        lines = text[: text.rindex(b"\n")].split(b"\n")
        value: dict[str, Any] = {}
        for line in lines:
            value |= json.loads(line)
        if value["version"] != VERSION:
            return None
        keeper = value.get("keeper")
        entry = LeaseEntry(
            lease_id=str(value["lease_id"]),
            uid=uid,
            user=processes.user_name(uid),
            process=Process.decode(value["process"]),
            name=str(value["name"]),
            group=str(value["group"]),
            count=int(value["count"]),
            among=tuple(str(uuid) for uuid in value["among"]),
            memory_mib=None if value["memory_mib"] is None else int(value["memory_mib"]),
            asked_at=float(value["asked_at"]),
            cards=tuple(str(uuid) for uuid in value.get("cards", ())),
            granted_at=float(value["granted_at"]) if "granted_at" in value else None,
            keeper=Process.decode(keeper) if keeper else None,
            host=str(value["host"]),
            token=int(value.get("token", 0)),
            lasts_s=None if value.get("lasts_s") is None else float(value["lasts_s"]),
            weight=float(value.get("weight", 0.0)),
            beside=value.get("beside") is True,
            yields=value.get("yields") is True,
        )
        return entry if _makes_sense(entry) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _makes_sense(entry: LeaseEntry) -> bool:
    """Whether its numbers are such as we write: what others may use is computed from them."""
    numbers = entry.asked_at, entry.granted_at or 0.0, entry.lasts_s or 0.0, entry.weight
    return (
        all(math.isfinite(number) and number >= 0 for number in numbers)
        and entry.count >= 1
        and (entry.memory_mib is None or entry.memory_mib >= 1)
    )


def unreadable(path: str, uid: int) -> LeaseEntry:
    """Return the entry for a living lease that cannot be read."""
    return LeaseEntry(
        lease_id=os.path.basename(path),
        uid=uid,
        user=processes.user_name(uid),
        process=Process(0, 0, "", ""),
        name=f"{UNREADABLE} {path}",
        group="",
        count=0,
        among=(),
        memory_mib=None,
        asked_at=0.0,
    )


def printable(text: str) -> str:
    """Return a text of another user without characters that could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
