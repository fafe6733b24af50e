"""The kernel of the storm: every execution leaves a line, whatever becomes of it afterwards."""

import os
import time

_open: dict[str, int] = {}


def square(number: int, seconds: float, ledger: str) -> int:
    """Write down that job `number` was begun, take a while, and return what is easy to check."""
    if ledger not in _open:
        _open[ledger] = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(_open[ledger], b"%d\n" % number)
    time.sleep(seconds)
    return number * number + 1


def double(x: int) -> int:
    """Return twice the argument."""
    return 2 * x


def linger(ledger: str) -> None:
    """Write down that this was begun, and stay until told to end."""
    with open(ledger, "a") as file:
        file.write("begun\n")
    while not os.path.exists(f"{ledger}.end"):
        time.sleep(0.005)
