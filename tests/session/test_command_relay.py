"""The guardian passes attempts to a minder and its words back, unread."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

import pytest

from postroom.commands.minder import MinderContext
from postroom.session import command_relay
from postroom.session.command_relay import LOST, CommandRelay
from postroom.store.base import Base
from postroom.system.fork import ForkedProcess

CONTEXT = MinderContext(Base("/none"), "0", "cpu", "CPU", {}, (), -1)


class Guardian:
    """A relay with a minder that the test plays."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.minders: list[socket.socket] = []
        self.selector = selectors.DefaultSelector()
        self.relay = CommandRelay(CONTEXT, self.selector, ended=self.heard.append)

    def fork(self, _: MinderContext) -> tuple[ForkedProcess, socket.socket]:
        ours, theirs = socket.socketpair()
        self.minders.append(theirs)
        return ForkedProcess(2**22 + 1), ours  # a pid that nobody has

    def hear(self) -> None:
        for key, _ in self.selector.select(10):
            key.data(key.fileobj)


@pytest.fixture
def guardian(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guardian]:
    made = Guardian()
    monkeypatch.setattr(command_relay, "fork_minder", made.fork)
    yield made
    made.relay.close()
    for minder in made.minders:
        minder.close()


def test_bytes_are_passed_on_as_they_are(guardian: Guardian) -> None:
    guardian.relay.give(b"attempt \xff not even JSON")
    assert guardian.relay.busy
    assert guardian.minders[0].recv(100) == b"attempt \xff not even JSON\n"
    guardian.minders[0].sendall(b"any word\n")
    guardian.hear()
    assert guardian.heard == [b"any word\n"]
    assert not guardian.relay.busy


def test_a_minder_is_kept_for_the_next_command(guardian: Guardian) -> None:
    for _ in range(2):
        guardian.relay.give(b"attempt {}")
        guardian.minders[0].sendall(b"done\n")
        guardian.hear()
    assert guardian.heard == [b"done\n"] * 2
    assert len(guardian.minders) == 1


def test_a_minder_that_dies_with_a_command_is_reported_and_replaced(guardian: Guardian) -> None:
    guardian.relay.give(b"attempt {}")
    guardian.minders[0].close()
    guardian.hear()
    assert guardian.heard == [LOST]
    assert not guardian.relay.busy
    guardian.relay.give(b"attempt {}")
    assert len(guardian.minders) == 2


def test_an_idle_minder_that_dies_is_no_loss(guardian: Guardian) -> None:
    guardian.relay.give(b"attempt {}")
    guardian.minders[0].sendall(b"done\n")
    guardian.hear()
    guardian.minders[0].close()
    guardian.hear()
    assert guardian.heard == [b"done\n"]


def test_to_stop_a_minder_that_is_gone_does_no_harm(guardian: Guardian) -> None:
    guardian.relay.stop()
    guardian.relay.give(b"attempt {}")
    guardian.relay.stop()
