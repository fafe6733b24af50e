"""Forked processes: their descriptors, exit codes, and signals that come early."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from postroom.system.fork import ForkedProcess, fork_process, hear_signals


def test_a_forked_process_keeps_only_what_it_is_given_and_ends_with_its_code() -> None:
    kept, writer = os.pipe()

    def body() -> int:
        names = os.listdir("/proc/self/fd")  # and the descriptor that lists them, closed by now
        found = [int(name) for name in names if os.path.exists(f"/proc/self/fd/{name}")]
        os.write(writer, repr([fd for fd in found if fd > 2]).encode())
        return 7 if os.getsid(0) == os.getpid() else 1

    process = fork_process(body, keep={writer}, failed=lambda: None)
    assert process.wait() == 7
    assert os.read(kept, 100) == f"[{writer}]".encode()
    os.close(kept)
    os.close(writer)


def test_an_error_is_reported_by_the_child(tmp_path: Path) -> None:
    def body() -> int:
        raise RuntimeError

    process = fork_process(body, keep=(), failed=(tmp_path / "failed").touch)
    assert process.wait() == 1
    assert (tmp_path / "failed").exists()


def test_a_signal_waits_until_the_child_can_hear_it() -> None:
    def body() -> int:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
        while True:
            hear_signals()

    process = fork_process(body, keep=(), failed=lambda: None)
    process.terminate()
    assert process.wait() == 5


def test_a_process_that_is_gone_can_be_told_anything() -> None:
    process = ForkedProcess(2**22 + 1)  # a pid that nobody has
    process.terminate()
    assert process.poll() == -signal.SIGKILL
