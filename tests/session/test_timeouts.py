"""A task past its time limit: what its guardian writes for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.parcel.sheets import Outcome, OutcomeSheet, RanBy
from postroom.session.timeouts import OverdueJob, job_in_hand
from postroom.store.mailbox import InHand, Letter
from postroom.store.runs import publish_results, read_notes, read_parcel_bytes
from tests.by_hand import PostRoom, results

MAKER = RanBy("0", "cpu", 1, 0.0)


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    return PostRoom(tmp_path)


def overdue(room: PostRoom, job: int, *, failed: int = 0) -> OverdueJob:
    letter = Letter(1, 1, "r", 0, 0, 3, failed=failed)
    hand = InHand("running", letter.letter_id, job, 0.0, 0)
    return OverdueJob(letter, hand)


def test_it_is_published_as_timed_out(room: PostRoom) -> None:
    room.run(3)
    overdue(room, 0).record(room.files, room.base, MAKER, limit_s=2.0, retries=0)
    path = room.base.result("r", 0)
    failure = OutcomeSheet(path, read_parcel_bytes(room.files, path)).done(0).failure
    assert failure is not None
    assert failure.outcome is Outcome.TIMED_OUT
    assert failure.message == "took longer than its time limit of 2 s"


def test_with_retries_left_it_is_noted(room: PostRoom) -> None:
    room.run(3)
    overdue(room, 0).record(room.files, room.base, MAKER, limit_s=2.0, retries=1)
    (note,) = read_notes(room.files, room.base, "r")
    assert (note.job, note.kind) == (0, "failed")
    assert not room.files.exists(room.base.result("r", 0))


def test_a_job_that_was_published_in_time_is_left_alone(room: PostRoom) -> None:
    made = room.run(3)
    publish_results(room.files, room.base, made, 0, 1, lambda first: results(first, [7]))
    overdue(room, 0).record(room.files, room.base, MAKER, limit_s=2.0, retries=0)
    assert room.values() == {0: 7}


def test_an_idle_worker_has_no_job_in_hand(room: PostRoom) -> None:
    room.run(3)
    room.inbox()
    assert job_in_hand(room.files, room.base, "0") is None
