"""The entries in Redis, and the scripts that change them."""

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

TTL_S = 10.0  # what nobody has renewed for so long is dead, as far as other hosts can know
ANSWER_S = 5.0


class RedisLease(NamedTuple):
    """One entry in Redis: a ticket, or a lease once it has cards."""

    entry: LeaseEntry
    place: str  # which folder of locks it belongs to: of this host, or of another
    waiter: Process  # whose death ends it while it waits; then the lock does
    number: str = ""  # its place in the line
    token: str = ""  # of its latest change; tokens only grow
    locked: bool = (
        False  # its cards were locked on its host: from then on, the lock says who has them
    )

    def encode(self) -> str:
        """Return what is kept as the entry's text."""
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
        """Read it back; raises ValueError, KeyError or TypeError on what makes no sense."""
        value: dict[str, Any] = json.loads(text)
        lines = value["request"].encode()
        if value["cards"]:
            lines += lease_records.encode_change({k: value[k] for k in ("cards", "granted_at")})
        entry = lease_records.decode(lines, int(value["uid"]))
        if entry is None:
            raise ValueError("no entry of ours")
        entry = entry._replace(user=str(value["user"]), token=int(token))
        waiter = Process.decode(value["waiter"])
        locked = bool(value.get("locked", False))
        return cls(entry, str(value["place"]), waiter, number.decode(), token.decode(), locked)


class RedisStore:
    """A Redis server, by a url that may also say `prefix` and `folder` (of this host's locks)."""

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
        # A password in the url is not for messages.
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
        """Write an entry; None when something has changed since `version`."""
        token = self._call(
            redis_scripts.PUT, version, row.entry.lease_id, row.number, row.encode(), _ttl_ms()
        ).decode()
        return row._replace(number=row.number or token, token=token) if int(token) else None

    def confirm(self, row: RedisLease) -> bool:
        """Say whether an entry still stands as it was put, and then that its cards are locked."""
        arguments = (row.entry.lease_id, row.token, _ttl_ms(), row.encode())
        return bool(self._call(redis_scripts.CONFIRM, *arguments))

    def renew(self, row: RedisLease) -> bool:
        """Keep an entry alive, or bring it back after a flush; False: its token has passed."""
        arguments = (row.entry.lease_id, row.token, _ttl_ms(), row.number, row.encode())
        return bool(self._call(redis_scripts.RENEW, *arguments))

    def drop(self, row: RedisLease) -> None:
        """Take an entry out."""
        self._call(redis_scripts.DROP, row.entry.lease_id, row.token)


def _ttl_ms() -> int:
    return int(TTL_S * 1000)
