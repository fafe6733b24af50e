"""`python -m postroom.pilots.ray_bridge ADDRESS OPTIONS SCRIPT`: stdin and stdout of a Ray actor.

The actor runs a script on its node and passes bytes to it and back. Calls of each direction are
made in order, several at a time, so that their latency does not show.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import Any

from .engine import TAKEN_CODE

CHUNK = 1 << 20
# Calls that are on their way in each direction.
IN_FLIGHT = 4


class Carrier:
    """The actor: a process on its node, and its pipes."""

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def put(self, data: bytes) -> None:
        """Write to the process; no bytes: there will be no more."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            if data:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            else:
                self._process.stdin.close()

    def take(self) -> bytes:
        """What the process has written since, at least a byte; none: it has ended."""
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), CHUNK)

    def end(self) -> int:
        """Wait for the process."""
        return self._process.wait()


def main(arguments: list[str]) -> int:
    """Carry bytes until the process on the other side has ended."""
    import ray
    from ray.exceptions import RayActorError, RayError

    address, options, script = arguments
    # What Ray prints must not reach the wire.
    writes = os.dup(1)
    os.dup2(2, 1)
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    kind = ray.remote(concurrency_groups={"in": 1, "out": 1})(_with_groups())
    actor: Any = kind.options(max_restarts=0, **json.loads(options)).remote(script)

    def carry_in() -> None:
        sent: collections.deque[Any] = collections.deque()
        with contextlib.suppress(RayError, OSError):
            while True:
                data = os.read(0, CHUNK)
                sent.append(actor.put.remote(data))
                while len(sent) > IN_FLIGHT:
                    ray.get(sent.popleft())
                if not data:
                    break
            ray.get(list(sent))

    threading.Thread(target=carry_in, daemon=True).start()
    asked = collections.deque(actor.take.remote() for _ in range(IN_FLIGHT))
    try:
        while data := ray.get(asked.popleft()):
            view = memoryview(data)
            while len(view):
                view = view[os.write(writes, view) :]
            asked.append(actor.take.remote())
        return int(ray.get(actor.end.remote()))
    except RayActorError as error:
        # Its node is gone, or somebody killed it: the far end itself never ends an actor. But if
        # the node's memory ran out, its job may be the reason, and would be again.
        words = str(error).strip()
        ray.shutdown()  # or what Ray logs of it would come behind
        print(f"ray: {words.splitlines()[-1]}", file=sys.stderr, flush=True)
        return 1 if "running low on memory" in words else TAKEN_CODE
    except (RayError, OSError) as error:
        print(f"ray: {error}", file=sys.stderr, flush=True)
        return 1


def _with_groups() -> type[Carrier]:
    """The actor's class, whose two directions do not wait for each other."""
    import ray

    class GroupedCarrier(Carrier):
        put = ray.method(concurrency_group="in")(Carrier.put)
        take = ray.method(concurrency_group="out")(Carrier.take)

    return GroupedCarrier


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
