"""The kernel's count of processes that it ended because memory ran out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.system import oom_kills
from postroom.system.oom_kills import WINDOW_S, OomWatch, count_oom_kills
from tests.groups import MemoryGroup


class Counter:
    """Counts what the test says."""

    kills = 3

    def count(self) -> int:
        return self.kills


def test_a_kill_is_seen_until_it_is_old() -> None:
    linux = Counter()
    watch = OomWatch(0.0, linux.count)
    assert not watch.saw_kill()
    linux.kills += 1
    assert watch.saw_kill()
    # A large process is still dying when the count is taken next.
    watch.look(WINDOW_S)
    assert watch.saw_kill()
    watch.look(WINDOW_S + 1)
    assert watch.saw_kill()
    watch.look(2 * WINDOW_S)
    assert not watch.saw_kill()


def test_the_nearest_group_that_counts_is_asked_and_else_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    below = tmp_path / "user" / "session"
    below.mkdir(parents=True)
    v1 = tmp_path / "v1"
    v1.mkdir()
    monkeypatch.setattr(oom_kills, "own", lambda controller="": str(v1 if controller else below))
    machine = count_oom_kills()
    (tmp_path / "user" / "memory.events").write_text("oom 9\noom_kill 1007\noom_group_kill 0\n")
    assert count_oom_kills() == 1007 != machine
    (below / "memory.events").write_text("oom_kill 1001\n")
    assert count_oom_kills() == 1001
    (v1 / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1003\n")
    assert count_oom_kills() == 1003


def test_a_kill_in_a_real_group_is_counted(memory_group: MemoryGroup) -> None:
    script = (
        "import subprocess, sys; from postroom.system.oom_kills import count_oom_kills\n"
        "open(sys.argv[1], 'w').write('0')\n"
        "print(count_oom_kills())\n"
        "print(subprocess.run([sys.executable, '-c', 'bytearray(400 << 20)']).returncode)\n"
        "print(count_oom_kills())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, memory_group.procs],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
    )
    before, code, after = map(int, done.stdout.split())
    assert (code, after - before) == (-signal.SIGKILL, 1)
