"""Reads and writes the entries in Redis."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode

from ...errors import GpuError
from ...system.processes import Process
from . import lease_records, redis_scripts
from .protocol import LeaseEntry, default_folder

TTL_S = 10.0  # an entry that is not renewed for this long is dead for other hosts
ANSWER_S = 5.0


class RedisLease(NamedTuple):
    """One entry in Redis: a waiting request, or a lease once it has cards."""

    entry: LeaseEntry
    place: str  # the host, and its folder of locks
    waiter: Process  # its death ends a waiting request; a lease ends with its lock
    number: str = ""  # its place in the waiting list
    token: str = ""  # of its latest change; tokens only grow
    locked: bool = False  # its cards are locked on its host; from then on only the lock counts

    def encode(self) -> str:
        """Return the text of the entry."""
        return json.dumps(
            {
                "place": self.place,
                "waiter": self.waiter.encode(),
                "uid": self.entry.uid,
                "user": self.entry.user,
                "request": lease_records.encode_request(self.entry).decode(),
                "cards": self.entry.cards,
                "granted_at": self.entry.granted_at,
                "locked": self.locked,
            }
        )

    @classmethod
    def decode(cls, text: bytes, number: bytes, token: bytes) -> RedisLease:
        """Read an entry; raise ValueError, KeyError or TypeError if it is not valid."""
        value: dict[str, Any] = json.loads(text)
        lines = value["request"].encode()
        if value["cards"]:
            lines += lease_records.encode_change({k: value[k] for k in ("cards", "granted_at")})
        entry = lease_records.decode(lines, int(value["uid"]))
        if entry is None:
            raise ValueError("not an entry of this version")
        entry = entry._replace(user=str(value["user"]), token=int(token))
        waiter = Process.decode(value["waiter"])
        locked = bool(value.get("locked", False))
        return cls(entry, str(value["place"]), waiter, number.decode(), token.decode(), locked)


class RedisStore:
    """A Redis server. Its url may also name the `prefix`, and the `folder` of this host's locks."""

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ImportError:
            raise GpuError(
                "a ledger in Redis needs the extra: pip install 'postroom[redis]'"
            ) from None
        self.url = url
        server, _, query = url.partition("?")
        options = parse_qs(query)
        self.prefix = options.pop("prefix", ["postroom"])[0]
        self.folder = options.pop("folder", [default_folder()])[0]
        # Messages must not show a password in the url.
        self.where = re.sub("//[^/]*@", "//", server)
        self._failure: type[Exception] = redis.RedisError
        self._client = redis.Redis.from_url(
            f"{server}?{urlencode(options, doseq=True)}",
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
        )

    def _call(self, script: str, *arguments: str | int) -> Any:
        try:
            return self._client.eval(script, 1, self.prefix, *arguments)
        except self._failure as error:
            raise GpuError(f"Redis at {self.where} does not answer: {error}") from None

    def snapshot(self) -> tuple[str, list[RedisLease]]:
        """Return the version and the living entries."""
        version, *values = self._call(redis_scripts.SNAPSHOT, os.urandom(8).hex())
        rows = []
        for start in range(0, len(values), 4):
            with suppress(ValueError, KeyError, TypeError):
                rows.append(RedisLease.decode(*values[start + 1 : start + 4]))
        return version.decode(), rows

    def put(self, row: RedisLease, *, version: str = "") -> RedisLease | None:
        """Write an entry; None if anything has changed since `version`."""
        token = self._call(
            redis_scripts.PUT, version, row.entry.lease_id, row.number, row.encode(), _ttl_ms()
        ).decode()
        return row._replace(number=row.number or token, token=token) if int(token) else None

    def confirm(self, row: RedisLease) -> bool:
        """Mark an entry as locked; False if it is gone or has changed."""
        arguments = (row.entry.lease_id, row.token, _ttl_ms(), row.encode())
        return bool(self._call(redis_scripts.CONFIRM, *arguments))

    def renew(self, row: RedisLease) -> bool:
        """Renew an entry, or restore it after a flush; False if its token is no longer valid."""
        arguments = (row.entry.lease_id, row.token, _ttl_ms(), row.number, row.encode())
        return bool(self._call(redis_scripts.RENEW, *arguments))

    def drop(self, row: RedisLease) -> None:
        """Remove an entry."""
        self._call(redis_scripts.DROP, row.entry.lease_id, row.token)


def _ttl_ms() -> int:
    return int(TTL_S * 1000)
