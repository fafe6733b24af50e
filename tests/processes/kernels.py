"""Kernels for the tests of real processes, copied into a project's folder."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time


def double(x):
    return x * 2


def attempt_number(log):
    """Write down which attempt this is."""
    with open(log, "a") as file:
        file.write(os.environ["POSTROOM_ATTEMPT"] + "\n")
    return int(os.environ["POSTROOM_ATTEMPT"])


def fail_until(attempt, log):
    """Fail in every attempt before the one that is named."""
    if attempt_number(log) < attempt:
        raise ValueError("not yet")
    return attempt


def die(log, until=1 << 30):
    """Take the worker down, in every attempt before `until`."""
    if attempt_number(log) < until:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def hog(log, until):
    """Take more memory than a test's memory group has, in every attempt before `until`."""
    if attempt_number(log) < until:
        bytearray(400 << 20)
    return "fits"


hog_again = hog_more = hog  # kernels of other kinds


def hang(log):
    attempt_number(log)
    time.sleep(1000)


def wait_for(path):
    """Wait for a file, then return."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return path


def grow_tree(token, unmarked):
    """Start processes that are hard to end, and stay: near, double-forked, deaf, unmarked."""
    deaf = "trap '' TERM INT HUP; "
    far = f'(setsid bash -c "{deaf} exec -a {token}-far sleep 1000" &); '
    subprocess.Popen(["bash", "-c", f"{deaf}{far} exec -a {token}-near sleep 1000"])
    if unmarked:
        script = f"{deaf}{far.replace('-far', '-bare-far')} exec -a {token}-bare sleep 1000"
        subprocess.Popen(["env", "-i", "bash", "-c", script])
    time.sleep(1000)


def occupy(log, kind, card):
    """Write down when this job has the card, by a clock that all processes share."""
    began = time.monotonic()
    time.sleep(0.01)
    line = f"{card} {kind} {began} {time.monotonic()}\n".encode()
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line)
    os.close(fd)


def meet(folder, me, other):
    """Return when the other one has begun, too: only possible at the same time."""
    open(f"{folder}/{me}.here", "w").close()
    wait_for(f"{folder}/{other}.here")


def blob(size, number):
    """Return so many bytes that all say which job they came from."""
    return bytes([number % 251]) * size


def open_files():
    return len(os.listdir("/proc/self/fd"))


def fork(how, x):
    """Fork, and let the child come back in one of the ways in which user code does."""
    if how == "thread":
        thread = threading.Thread(target=os.fork)
        thread.start()
        thread.join()
        return x * 2
    if how == "multiprocessing":
        context = multiprocessing.get_context("fork")
        child = context.Process(target=double, args=[x])
        child.start()
        child.join()
        return x * 2
    if how == "returns" and os.fork() == 0:
        return "the child's"
    if how == "raises" and os.fork() == 0:
        raise ValueError("the child's")
    if how == "exits" and os.fork() == 0:
        sys.exit(3)
    return x * 2


def close_descriptors(first=3):
    """Close what a daemon closes, and open a file: it gets the number of one that was closed."""
    os.closerange(first, 1000)
    with open("mine.txt", "w+") as file:
        file.write("what the kernel wrote")
        os.dup2(file.fileno(), 40)
    for number in range(3, 40):
        os.dup2(40, number)  # kept open, as by a logger
    return "closed"


def lower(limit, hard, to=8):
    """Lower a limit of the process, by default to next to nothing."""
    import resource

    number = getattr(resource, limit)
    most = resource.getrlimit(number)[1]
    resource.setrlimit(number, (to, to if hard else most))
    return "lowered"


def limits_of(limit):
    import resource

    return resource.getrlimit(getattr(resource, limit))


def be_nice():
    return os.nice(3)


def spoil():
    """Change everything that a program can change of its process."""
    os.environ["SPOILT"] = "yes"
    os.environ.pop("HOME", None)
    os.chdir("/")
    os.umask(0o777)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(1000)
    sys.stdout = None
    return "spoilt"


def describe():
    """How a job finds its process."""
    umask = os.umask(0o022)
    return {
        "folder": os.getcwd(),
        "environment": sorted(set(os.environ) - {"POSTROOM_JOB", "POSTROOM_ATTEMPT"}),
        "handlers": [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGALRM)],
        "alarm": signal.alarm(0),
        "umask": umask,
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "stdout": sys.stdout is sys.__stdout__,
    }


def talk(word, end=""):
    """Print in every way there is; then end as told."""
    import ctypes
    import logging

    print("printed", word)
    print("half a line", file=sys.stderr, end="")
    logging.getLogger("talk").warning(" and logged %s", word)
    if end == "silent":
        return word
    if end == "raise":
        raise ValueError(word)
    if end == "die":
        print("the last words", word)
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "child":
        subprocess.run(["echo", "from a child"], check=True)
        ctypes.CDLL(None).usleep(300_000)
    return word
