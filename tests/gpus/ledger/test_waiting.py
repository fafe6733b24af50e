from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.errors import GpuError
from postroom.gpus.ledger import waiting
from postroom.gpus.ledger.fair_share import Account
from postroom.gpus.ledger.protocol import LeaseEntry
from postroom.gpus.ledger.reservations import Reservation
from postroom.gpus.ledger.waiting import Situation, append, claimed, glance_s, look_s
from postroom.system import processes

from .line import Line


def test_later_and_older_requests_look_less_often() -> None:
    assert look_s(0, 0.0) == waiting.LOOK_S
    assert look_s(0, 3600.0) == 5 * waiting.LOOK_S
    assert look_s(9, 0.0) == pytest.approx(10 * waiting.LOOK_S)
    assert look_s(10_000, 3600.0) == waiting.LOOK_LIMIT_S
    assert glance_s(0) == waiting.LOOK_S
    assert glance_s(10_000) == waiting.GLANCE_LIMIT_S


def claim(line: Line, lease: LeaseEntry) -> str:
    return claimed(lease, line.state(), Situation(line.available(), line.facts())).why


def test_a_holder_gives_way_to_who_has_used_less_but_not_at_once() -> None:
    line = Line(cards=1)
    line.ask(1001, 3600.0)
    line.run(5.0)
    (lease,) = line.held.values()
    line.ask(1002, 60.0)
    assert claim(line, lease) == ""  # it has just begun
    line.run(600.0)
    assert claim(line, lease) == line.waiting[0].describe() + " is before it"
    line.accounts[1002] = Account(300.0, line.now)
    assert claim(line, lease)  # what it has held counts, although it is not in its account yet
    line.accounts[1002] = Account(1e6, line.now)
    assert claim(line, lease) == ""  # the other has used more


def test_a_holder_gives_way_to_a_reservation_but_not_to_a_request_for_another_card() -> None:
    line = Line(cards=2)
    line.ask(1001, 3600.0, jobs=2)
    line.run(600.0)
    lease, second = line.held.values()
    line.ask(1002, 60.0)
    line.waiting[0] = line.waiting[0]._replace(among=second.cards)
    assert claim(line, lease) == ""
    assert claim(line, second)
    situation = Situation(line.available(), line.facts())
    found = [claimed(one, line.state(), situation).waited_for for one in (lease, second)]
    assert found == [False, True]
    line.waiting.clear()
    soon = Reservation("r", 1002, "user1002", 2, line.now + 60, line.now + 600)
    line.reservations = [soon]
    assert claim(line, lease) == ""  # not yet, but it knows until when
    situation = Situation(line.available(), line.facts())
    assert claimed(lease, line.state(), situation).until == soon.start
    # Also for a lease that says that it can be given back within a minute, as sessions' do.
    later = Situation(line.available(), line.facts()._replace(now=line.now - 3000))
    short = lease._replace(lasts_s=60.0)
    assert claimed(short, line.state(), later).until == soon.start
    line.run(605.0)
    assert claim(line, lease) == f"user {processes.user_name(1002)} has reserved it"
    line.reservations = [soon._replace(count=1)]
    assert sorted(map(bool, (claim(line, lease), claim(line, second)))) == [False, True]


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path / "lease", os.O_RDWR | os.O_CREAT)
    append(fd, b"one\n")
    append(fd, b"two\n")
    assert (tmp_path / "lease").read_bytes() == b"one\ntwo\n"
    monkeypatch.setattr(os, "write", lambda fd, text: len(text) - 1)
    with pytest.raises(GpuError, match="disk is full"):
        append(fd, b"three\n")
    os.close(fd)
