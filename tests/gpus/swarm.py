"""Many processes that fight for few cards while they are killed at random; run by test_swarm.

Witnesses are files of the test's own, one per card. A process that is granted a card takes
the file lock of its witness; a lock that is taken already means two tenants at once. Each process
opens the witnesses before it asks, so that its death closes them before the lease.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from postroom.errors import CardHeld, GpuError
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger

CARDS = [f"FAKE-{number}" for number in range(4)]


def say(path: Path, text: str) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(text.encode() + b"\n")


def make_request(chance: random.Random) -> LeaseRequest:
    kind = chance.random()
    if kind < 0.7:
        return LeaseRequest(name="one")
    if kind < 0.85:
        return LeaseRequest(name="named", cards=(chance.choice(CARDS),))
    return LeaseRequest(name="two", count=2)


def work(folder: Path, goal: int) -> None:
    """Ask, hold and let go until the goal is reached by all together."""
    chance = random.Random()
    witnesses = {card: os.open(folder / card, os.O_RDWR | os.O_CREAT) for card in CARDS}
    done = folder / "done"
    ledger = open_ledger()
    while not done.exists() or done.stat().st_size < goal * 2:
        try:
            lease = ledger.acquire(make_request(chance), timeout_s=60)
        except CardHeld as error:
            say(folder / "violations", f"never served: {error}")
            return
        except GpuError as error:
            # A new request is refused at once while the server restarts; a waiting one goes on.
            if "does not answer" not in str(error):
                raise
            time.sleep(0.05)
            continue
        for card in lease.cards:
            try:
                fcntl.flock(witnesses[card], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(folder / "violations", f"two tenants on {card}")
        say(done, ".")
        time.sleep(chance.random() * 0.01)
        for card in lease.cards:
            fcntl.flock(witnesses[card], fcntl.LOCK_UN)
        lease.release()


def main() -> None:
    folder, processes, goal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(int(sys.argv[4]))
    done = folder / "done"
    alive: set[int] = set()
    killed = 0
    while True:
        size = done.stat().st_size if done.exists() else 0
        while len(alive) < processes and size < goal * 2:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    work(folder, goal)
                    code = 0
                except BaseException:
                    say(folder / "violations", traceback.format_exc())
                finally:
                    os._exit(code)
            alive.add(pid)
        for pid in list(alive):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                alive.discard(pid)
                if os.waitstatus_to_exitcode(status) == 1:
                    goal = 0  # something is wrong: the test says what, from the violations
        if not alive:
            break
        # So many kills for so much work, however slow the machine is.
        if killed * 16 < size < goal * 2:
            os.kill(chance.choice(sorted(alive)), signal.SIGKILL)
            killed += 1
        time.sleep(0.01)
    print(killed)


if __name__ == "__main__":
    main()
