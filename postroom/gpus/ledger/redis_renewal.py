"""The small process that keeps a lease known in Redis for as long as its lock is held.

It has no part in the lock: it only looks at it. When the lock is free, the lease is over, whoever
held it, and the entry is taken out. Killed, it costs other hosts the view of the lease, never the
lease.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

from ...errors import GpuError
from ...system.shared_folder import lock_is_free
from .redis_store import TTL_S, RedisLease, RedisStore

LOOK_S = 0.1
START = "from postroom.gpus.ledger.redis_renewal import main; main()"


def start_renewal(url: str, lease_path: str, row: RedisLease) -> None:
    """Start the process; what it needs goes by a pipe: the url may hold a password."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    here = os.path.abspath(__file__)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(here))))
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join((root, path))},
        start_new_session=True,
    )
    assert child.stdin is not None
    need = {
        "url": url,
        "lease_path": lease_path,
        "text": row.encode(),
        "number": row.number,
        "token": row.token,
    }
    with suppress(BrokenPipeError):
        child.stdin.write(json.dumps(need).encode())
        child.stdin.close()
    child.returncode = 0  # it outlives us: nobody is to wait for it, or to warn that nobody did


def main() -> None:
    """Renew one entry until its lease is over."""
    need = json.load(sys.stdin)
    store = RedisStore(need["url"])
    row = RedisLease.decode(need["text"].encode(), need["number"].encode(), need["token"].encode())
    renewed = 0.0
    try:
        fd = os.open(need["lease_path"], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        fd = -1  # it is over already
    while fd >= 0 and not lock_is_free(fd):
        if time.monotonic() - renewed > TTL_S / 5:
            with suppress(GpuError):  # a server that is away is asked again
                store.renew(row)
                renewed = time.monotonic()
        time.sleep(LOOK_S)
    with suppress(GpuError):
        store.drop(row)
