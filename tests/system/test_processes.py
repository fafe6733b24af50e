from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from postroom.system import processes
from postroom.system.processes import Process


def test_a_process_is_alive_until_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = processes.identify(child.pid)
        assert found is not None
        assert processes.alive(found) is True
        assert processes.ancestors(child.pid)[0] == os.getpid()
        child.kill()
    assert processes.alive(found) is False
    assert processes.identify(child.pid) is None


def test_a_reused_pid_another_boot_and_another_namespace_are_told_apart() -> None:
    me = processes.myself()
    assert processes.alive(me) is True
    assert processes.alive(me._replace(started_ticks=me.started_ticks + 1)) is False
    assert processes.alive(me._replace(boot_id="another")) is False
    assert processes.alive(me._replace(pid_namespace="another")) is None
    assert Process.decode(me.encode()) == me


def test_a_pid_of_another_namespace_says_so_and_is_never_taken_for_a_stopped_process() -> None:
    me = processes.myself()
    assert processes.describe_pid(7, me.pid_namespace, "box") == "pid 7"
    assert "in another container, on host box" in processes.describe_pid(7, "pid:[1]", "box")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = processes.identify(child.pid)
        assert found is not None
        assert not processes.is_stopped(found)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert processes.is_stopped(found)
        assert not processes.is_stopped(found._replace(pid_namespace="pid:[1]"))
        child.kill()


def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    me = processes.myself()
    monkeypatch.setattr(processes, "stat", lambda _: None)  # as under hidepid
    assert processes.alive(me) is False  # our own are never hidden
    monkeypatch.setattr(os, "kill", _not_ours)
    assert processes.alive(me) is None


def _not_ours(pid: int, number: int) -> None:
    raise PermissionError


def test_a_command_with_brackets_and_spaces_is_read() -> None:
    code = "open('/proc/self/comm', 'w').write('a) R (b'); print(flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        seen = processes.stat(child.pid)
        child.kill()
    assert seen is not None
    assert (seen.command, seen.parent) == ("a) R (b", os.getpid())


def test_a_user_without_an_account_is_a_number() -> None:
    assert processes.user_name(3_999_999_999) == "3999999999"
    assert processes.user_of(os.getpid()) == processes.user_name(os.geteuid())
