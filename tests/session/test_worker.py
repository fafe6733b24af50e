"""The worker's end of the socket to its guardian."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from postroom.commands.attempt import CommandAttempt, Stopped
from postroom.commands.spec import CommandSpec
from postroom.session.worker import GuardianLink
from postroom.system.file_events import Waiter

ATTEMPT = CommandAttempt(CommandSpec("true", folder="/out/job_1"), "r", 0, 1, 0)


class Guardian:
    """The other end, played by the test."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.link = GuardianLink(theirs.detach())
        self.waiter = Waiter([], spin=False)
        self.listening = threading.Thread(target=self.link.listen, args=[self.waiter])
        self.listening.start()

    def close(self) -> None:
        self.socket.close()
        self.listening.join(60)
        self.waiter.close()


@pytest.fixture
def guardian() -> Iterator[Guardian]:
    made = Guardian()
    yield made
    made.close()


def test_a_worker_stops_when_it_is_told_to(guardian: Guardian) -> None:
    guardian.socket.sendall(b"sto")
    guardian.socket.sendall(b"p\n")
    assert guardian.link.stopping.wait(60)


def test_a_worker_stops_when_its_guardian_is_gone(guardian: Guardian) -> None:
    guardian.socket.close()
    assert guardian.link.stopping.wait(60)


def test_a_worker_stops_when_its_guardian_dies_before_it_has_read_everything(
    guardian: Guardian,
) -> None:
    guardian.link.say(ready=True, device="commands")
    guardian.socket.close()
    assert guardian.link.stopping.wait(60)


def test_a_command_is_sent_and_waited_for(guardian: Guardian) -> None:
    guardian.socket.sendall(b"done\n")
    guardian.link.run_command(ATTEMPT, lambda: None)
    assert guardian.socket.recv(4096) == ATTEMPT.encode()


def test_a_command_that_takes_long_says_so_and_may_be_stopped(guardian: Guardian) -> None:
    with pytest.raises(Stopped):
        guardian.link.run_command(ATTEMPT, lambda: guardian.socket.sendall(b"stopped\n"))
