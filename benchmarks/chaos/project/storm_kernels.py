"""The kernel of the storm: every execution leaves a line, whatever becomes of it afterwards."""

import multiprocessing
import os
import threading
import time

import numpy as np

_open: dict[str, int] = {}


def square(number: int, salt: int, seconds: float, ledger: str, fork: str = "") -> int:
    """Write down that job `number` was begun, take a while, and return what is easy to check."""
    if ledger not in _open:
        _open[ledger] = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(_open[ledger], b"%d %d\n" % (salt, number))
    if fork and forked(fork, seconds):
        return -1  # the child comes back; if it acted as a worker, this would be seen
    time.sleep(seconds)
    return number * number + salt


def large(x: np.ndarray, items: int) -> np.ndarray:
    """Check that an array is of one number, take a while, and return one of its square."""
    token = int(x[0])
    for _ in range(3):  # meanwhile somebody may write over its file
        if not (x == token).all():
            raise RuntimeError(f"the argument of {token} has {set(x.tolist())}")
        time.sleep(0.003)
    return np.full(items, token * token)


def forked(how: str, seconds: float) -> bool:
    """Fork in one of the ways of user code; whether this is the child, which comes back."""
    if how == "thread":
        thread = threading.Thread(target=os.fork)
        thread.start()
        thread.join()
    elif how == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=double, args=[1])
        child.start()
        child.join()
    elif os.fork() == 0:
        time.sleep(seconds)
        if how == "raises":
            raise RuntimeError("the child's")
        return True
    return False


def double(x: int) -> int:
    """Return twice the argument."""
    return 2 * x


def linger(ledger: str) -> None:
    """Write down that this was begun, and stay until told to end."""
    with open(ledger, "a") as file:
        file.write("begun\n")
    while not os.path.exists(f"{ledger}.end"):
        time.sleep(0.005)
