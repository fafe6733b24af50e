"""A base that is moved away, and a new one in its place: nobody touches what is not its own."""

from __future__ import annotations

import os
import signal

import pytest

from postroom import Job
from postroom.errors import BaseFolderError
from postroom.store.base import create_base
from postroom.testing import RealSessions, wait_until

from .conftest import drive


def replace_base(sessions: RealSessions) -> str:
    """Move the base away, and make a new one of the same name; return where the old one is."""
    old = f"{sessions.base.root}.old"
    os.rename(sessions.base.root, old)
    create_base(sessions.base.root)
    return old


@pytest.mark.parametrize("told", [True, False], ids=["told to stop", "by itself"])
def test_a_session_of_a_moved_base_ends_and_leaves_the_new_session_alone(
    sessions: RealSessions, told: bool
) -> None:
    sessions.start("0", "cpu")
    before = sessions.guardians["0"]
    before.send_signal(signal.SIGSTOP)  # else it may end before there is a new one
    if told:
        before.send_signal(signal.SIGTERM)
    replace_base(sessions)
    sessions.start("0", "cpu")
    worker = sessions.worker("0")
    before.send_signal(signal.SIGCONT)
    wait_until(lambda: before.poll() is not None, what="the end of the old session")
    with sessions.master() as master:
        assert master.run([Job("kernels:double", x=2)]).results() == [4]
        agents = master.base.agent_pool
        assert {"0.POOL", "0.json", "0.lock"} <= set(os.listdir(agents))
    assert sessions.worker("0") == worker


def test_a_worker_of_a_moved_base_that_dies_takes_no_letter_from_the_new_one(
    sessions: RealSessions,
) -> None:
    sessions.start("0", "cpu")
    before, worker = sessions.guardians["0"], sessions.worker("0")
    before.send_signal(signal.SIGSTOP)  # else it ends before that
    replace_base(sessions)
    sessions.start("0", "cpu")
    go = f"{sessions.import_folder}/go"
    with sessions.master() as master:
        pool = master.submit_all([Job("kernels:wait_for", path=go)])
        drive(master, lambda: os.path.getsize(master.base.mailbox("0")), what="the letter")
        os.kill(worker, signal.SIGKILL)
        before.send_signal(signal.SIGCONT)
        wait_until(lambda: before.poll() is not None, what="the end of the old session")
        with open(go, "w"):
            pass
        assert pool.results() == [go]
        assert os.listdir(master.base.attempts(pool.run)) == []


def test_a_master_of_a_moved_base_does_not_act_on_the_new_one(sessions: RealSessions) -> None:
    with sessions.master() as master:
        drive(master, lambda: master.acting, what="the lock")
        replace_base(sessions)
        with pytest.raises(BaseFolderError, match="moved"):
            drive(master, lambda: False, what="the error")
        assert not master.acting
