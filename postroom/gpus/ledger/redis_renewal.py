"""The small process that renews the entry of a lease in Redis while the lock of the lease is held.

It does not hold the lock, it only tests it. When the lock is free, the lease has ended, and the
process removes the entry. If the process is killed, other hosts no longer see the lease, but the
lease stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

from ...errors import GpuError
from ...system.absence import means_absent
from ...system.shared_folder import lock_is_free
from .redis_store import TTL_S, RedisLease, RedisStore

LOOK_S = 0.1
START = "from postroom.gpus.ledger.redis_renewal import main; main()"


def start_renewal(url: str, lease_path: str, row: RedisLease) -> None:
    """Start the process; its settings go through a pipe, since the url may hold a password.

    A shell starts it and ends at once, so it is not our child, and nobody has to wait for it: a
    program that takes a lease for each of its jobs would collect dead processes.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    here = os.path.abspath(__file__)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(here))))
    settings = {
        "url": url,
        "lease_path": lease_path,
        "text": row.encode(),
        "number": row.number,
        "token": row.token,
    }
    shell = subprocess.run(
        ["sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "sh", sys.executable, "-P", "-c", START],
        input=json.dumps(settings).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join((root, path))},
        start_new_session=True,
    )
    if shell.returncode:
        raise GpuError("the process that renews a lease could not be started; try again")


def _open_lease(path: str) -> int | None:
    """Open the file of a lease; None: the lease has ended already."""
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if means_absent(error):
                return None
        time.sleep(LOOK_S)


def main() -> None:
    """Renew one entry until its lease ends."""
    settings = json.load(sys.stdin)
    store = RedisStore(settings["url"])
    row = RedisLease.decode(
        settings["text"].encode(), settings["number"].encode(), settings["token"].encode()
    )
    renewed = 0.0
    fd = _open_lease(settings["lease_path"])
    while fd is not None and not lock_is_free(fd):
        if time.monotonic() - renewed > TTL_S / 5:
            with suppress(GpuError):  # try again when the server is back
                store.renew(row)
                renewed = time.monotonic()
        time.sleep(LOOK_S)
    with suppress(GpuError):
        store.drop(row)
