"""The worker's side of the mailbox, one step at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.parcel.sheets import (
    Failure,
    JobEnd,
    JobOptions,
    JobSheet,
    Outcome,
    RanBy,
    pack_jobs,
    pack_outcomes,
)
from postroom.session.inbox import HOLD_S, PUBLISH_BYTES, PUBLISH_S, Alike, Inbox, Step
from postroom.store.append_log import AppendLogWriter
from postroom.store.files import LocalFiles
from postroom.store.mailbox import Letter, read_in_hand
from postroom.store.runs import (
    RunInfo,
    close_outboxes,
    first_missing,
    publish_results,
    read_notes,
    take_back_letter,
)
from tests.by_hand import PostRoom, double, results


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    return PostRoom(tmp_path)


def send(room: PostRoom, *fields: Any, agent_id: str = "0", **more: Any) -> Letter:
    letter = Letter(*fields, **more)
    box = room.files.open_box(room.base.mailbox(agent_id))
    assert box is not None
    box.write(letter.encode())
    return letter


def fails(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
    return JobEnd(failure=Failure(Outcome.FAILED, "ValueError", f"no {job}", "Traceback: ..."))


def finish(inbox: Inbox) -> None:
    for _ in range(100):
        if inbox.step() is not Step.WORKED:
            return
    raise AssertionError("the inbox never rests")


def box_size(room: PostRoom) -> int:
    return os.path.getsize(room.base.mailbox("0"))


def test_a_letter_is_done_published_and_given_back(room: PostRoom) -> None:
    room.run(4)
    inbox = room.inbox()
    send(room, 1, 1, "r", 0, 1, 4)
    finish(inbox)
    assert room.values() == {1: 2, 2: 4, 3: 6}
    assert box_size(room) == 0
    assert not inbox.at_work


def test_the_mailbox_is_emptied_only_after_the_results_are_out(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Watching(LocalFiles):
        def publish(self, temporary: str, final: str) -> bool:
            seen.append(room.letter() is not None)
            return super().publish(temporary, final)

    room = PostRoom(tmp_path, Watching())
    room.run(2)
    inbox = room.inbox()
    send(room, 1, 1, "r", 0, 0, 2)
    finish(inbox)
    assert seen and all(seen)


def test_each_step_does_at_most_one_job(room: PostRoom) -> None:
    done: list[int] = []

    def run_job(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
        done.append(job)
        return double(info, sheet, job, attempt)

    room.run(3)
    inbox = room.inbox(run_job=run_job)
    send(room, 1, 1, "r", 0, 0, 3)
    for expected in ([], [0], [0, 1], [0, 1, 2]):
        assert inbox.step() is Step.WORKED
        assert done == expected


def test_results_wait_a_moment_for_company_and_no_longer(room: PostRoom) -> None:
    room.run(9)
    inbox = room.inbox()
    send(room, 1, 1, "r", 0, 0, 9)
    for _ in range(3):
        inbox.step()
    assert room.values() == {}
    room.clock.now += PUBLISH_S
    inbox.step()
    assert set(room.values()) == {0, 1, 2}


def test_a_large_result_is_published_at_once(room: PostRoom) -> None:
    room.run(2)
    inbox = room.inbox(run_job=lambda *_: JobEnd(1, nbytes=PUBLISH_BYTES))
    send(room, 1, 1, "r", 0, 0, 2)
    inbox.step()
    inbox.step()
    assert set(room.values()) == {0}


@pytest.mark.parametrize("data", [b"garbage", b"POSTROOM 0094 ", b"\0" * 200])
def test_what_is_no_letter_is_left_alone(room: PostRoom, data: bytes) -> None:
    room.run(1)
    inbox = room.inbox()
    Path(room.base.mailbox("0")).write_bytes(data)
    assert inbox.step() is Step.IDLE
    assert Path(room.base.mailbox("0")).read_bytes() == data


def test_a_letter_of_an_older_master_is_ignored(room: PostRoom) -> None:
    room.run(4)
    inbox = room.inbox()
    send(room, 5, 1, "r", 0, 0, 1)
    finish(inbox)
    send(room, 4, 9, "r", 0, 1, 2)
    assert inbox.step() is Step.IDLE
    assert set(room.values()) == {0}
    send(room, 5, 2, "r", 0, 2, 3)
    finish(inbox)
    assert set(room.values()) == {0, 2}


def test_a_letter_of_an_unknown_run_is_given_back(room: PostRoom) -> None:
    inbox = room.inbox()
    send(room, 1, 1, "gone", 0, 0, 1)
    assert inbox.step() is Step.WORKED
    assert box_size(room) == 0


def test_a_range_may_reach_over_several_parcels(room: PostRoom) -> None:
    room.run(2)
    room.append(2, 1)
    room.append(3, 2)
    inbox = room.inbox()
    send(room, 1, 1, "r", 0, 1, 5)
    finish(inbox)
    assert room.values() == {1: 2, 2: 4, 3: 6, 4: 8}


def test_the_line_in_hand_names_the_job_before_it_is_begun(room: PostRoom) -> None:
    seen = []

    def run_job(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
        seen.append(read_in_hand(room.files, room.base, "0"))
        return JobEnd(job)

    room.run(2)
    inbox = room.inbox(run_job=run_job)
    letter = send(room, 1, 7, "r", 0, 0, 2)
    finish(inbox)
    assert [(h.state, h.letter_id, h.job) for h in seen if h] == [
        ("running", letter.letter_id, 0),
        ("running", letter.letter_id, 1),
    ]
    rest = read_in_hand(room.files, room.base, "0")
    assert rest is not None and (rest.state, rest.done) == ("idle", 2)


class TestJobsThatAreAlike:
    """The first job of a parcel runs for itself; those behind it may run together."""

    def test_each_is_named_before_it_is_begun(self, room: PostRoom) -> None:
        seen = []

        def run_alike(info: RunInfo, sheet: JobSheet, jobs: range, attempt: int) -> Alike:
            def ends() -> Iterator[JobEnd]:
                for job in jobs:
                    hand = read_in_hand(room.files, room.base, "0")
                    assert hand is not None
                    seen.append((hand.state, hand.letter_id, hand.job, job))
                    yield double(info, sheet, job, attempt)

            return Alike(ends())

        room.run(20)
        inbox = room.inbox(run_alike=run_alike)
        letter = send(room, 1, 1, "r", 0, 0, 20)
        finish(inbox)
        assert seen == [("running", letter.letter_id, job, job) for job in range(1, 20)]
        assert room.values() == {job: 2 * job for job in range(20)}

    def test_a_failure_is_the_result_of_its_own_job_and_the_next_goes_on(
        self, room: PostRoom
    ) -> None:
        def run_alike(info: RunInfo, sheet: JobSheet, jobs: range, attempt: int) -> Alike:
            make = {3: fails, 7: fails}
            return Alike(make.get(job, double)(info, sheet, job, attempt) for job in jobs)

        room.run(10)
        inbox = room.inbox(run_alike=run_alike)
        send(room, 1, 1, "r", 0, 0, 10)
        finish(inbox)
        good = {job: 2 * job for job in range(10)}
        assert room.values() == {**good, 3: "failed", 7: "failed"}

    def test_one_that_lingers_leaves_those_behind_it_to_others(self, room: PostRoom) -> None:
        def run_alike(info: RunInfo, sheet: JobSheet, jobs: range, attempt: int) -> Alike:
            def ends() -> Iterator[JobEnd]:
                for job in jobs:
                    if job == 4:
                        inbox.linger()
                        assert sorted(room.values()) == [0, 1, 2, 3]
                    yield double(info, sheet, job, attempt)

            return Alike(ends())

        room.run(10)
        inbox = room.inbox(run_alike=run_alike)
        send(room, 1, 1, "r", 0, 0, 10)
        finish(inbox)
        assert room.values() == {job: 2 * job for job in range(5)}

    def test_those_that_share_a_call_stay_together_when_it_lingers(self, room: PostRoom) -> None:
        def run_alike(info: RunInfo, sheet: JobSheet, jobs: range, attempt: int) -> Alike:
            def ends() -> Iterator[JobEnd]:
                inbox.linger()
                letter = room.letter()
                assert letter is not None and letter.stop == jobs[:4].stop
                yield from [double(info, sheet, job, attempt) for job in jobs[:4]]

            return Alike(ends(), together=4)

        room.run(10)
        inbox = room.inbox(run_alike=run_alike)
        send(room, 1, 1, "r", 0, 0, 10)
        finish(inbox)
        assert room.values() == {job: 2 * job for job in range(5)}


class TestFailures:
    def test_a_failure_is_a_result(self, room: PostRoom) -> None:
        room.run(2)
        inbox = room.inbox(run_job=fails)
        send(room, 1, 1, "r", 0, 0, 2)
        finish(inbox)
        assert room.values() == {0: "failed", 1: "failed"}

    def test_a_job_with_retries_left_ends_its_letter_with_a_note(self, room: PostRoom) -> None:
        room.run(3, retries=2)
        inbox = room.inbox(run_job=fails)
        send(room, 1, 1, "r", 0, 0, 3, attempt=2, failed=1)
        finish(inbox)
        assert room.values() == {}
        (note,) = read_notes(room.files, room.base, "r")
        assert (note.job, note.attempt, note.kind) == (0, 2, "failed")
        assert "no 0" in note.reason and note.traceback
        assert box_size(room) == 0

    def test_the_note_is_there_before_the_letter_is_let_go(self, tmp_path: Path) -> None:
        class Watching(LocalFiles):
            def publish(self, temporary: str, final: str) -> bool:
                assert room.letter() is not None
                return super().publish(temporary, final)

        room = PostRoom(tmp_path, Watching())
        room.run(1, retries=1)
        inbox = room.inbox(run_job=fails)
        send(room, 1, 1, "r", 0, 0, 1)
        finish(inbox)
        assert len(read_notes(room.files, room.base, "r")) == 1

    def test_a_job_without_retries_left_has_failed(self, room: PostRoom) -> None:
        room.run(1, retries=2)
        inbox = room.inbox(run_job=fails)
        send(room, 1, 1, "r", 0, 0, 1, attempt=4, failed=2)
        finish(inbox)
        assert room.values() == {0: "failed"}
        assert read_notes(room.files, room.base, "r") == []

    def test_a_bad_parcel_fails_its_jobs_and_nothing_else(self, room: PostRoom) -> None:
        room.run(2)
        room.run(1, "s")
        room.parcels()[0].write_bytes(b"torn")
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 0, 2)
        finish(inbox)
        assert room.values() == {0: "failed", 1: "failed"}
        send(room, 1, 2, "s", 0, 0, 1)
        finish(inbox)
        assert room.values("s") == {0: 0}

    def test_a_job_behind_the_end_of_its_parcel_never_gets_anothers_arguments(
        self, room: PostRoom
    ) -> None:
        room.run(2)
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 5, 6)
        finish(inbox)
        assert room.values() == {5: "failed"}

    def test_an_io_error_while_reading_is_not_the_jobs_fault(self, tmp_path: Path) -> None:
        class Sick(LocalFiles):
            def view(self, path: str, limit: int, *, recycled: bool = False) -> Any:
                raise OSError(5, "Input/output error")

        room = PostRoom(tmp_path, Sick())
        room.run(1)
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 0, 1)
        finish(inbox)
        assert os.listdir(room.base.result_folder("r")) == []
        (note,) = read_notes(room.files, room.base, "r")
        assert note.kind == "lost"
        assert box_size(room) == 0

    def test_a_result_that_cannot_travel_is_a_failure_that_says_so(self, room: PostRoom) -> None:
        room.run(2)
        inbox = room.inbox(run_job=lambda c, s, job, a: JobEnd(object() if job else 1))
        send(room, 1, 1, "r", 0, 0, 2)
        finish(inbox)
        assert room.values() == {0: 1, 1: "failed"}


class FullDisk(LocalFiles):
    """A disk that takes no new file while it is full."""

    full = False
    error = errno.ENOSPC

    def write_new(self, path: str, chunks: Any, *, sync: bool = False, **_: Any) -> None:
        if self.full:
            raise OSError(self.error, os.strerror(self.error))
        super().write_new(path, chunks, sync=sync)


class TestBlocking:
    def test_on_a_full_disk_results_wait_in_memory(self, tmp_path: Path) -> None:
        files = FullDisk()
        room = PostRoom(tmp_path, files)
        room.run(2)
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 0, 2)
        files.full = True
        finish(inbox)
        assert inbox.step() is Step.BLOCKED
        assert box_size(room) > 0 and room.values() == {}
        hand = read_in_hand(files, room.base, "0")
        assert hand is not None and hand.state == "blocked"
        files.full = False
        finish(inbox)
        assert room.values() == {0: 0, 1: 2}
        assert box_size(room) == 0

    def test_what_no_waiting_mends_ends_the_worker_and_leaves_its_job_in_its_hand(
        self, tmp_path: Path
    ) -> None:
        files = FullDisk()
        room = PostRoom(tmp_path, files)
        room.run(1)
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 0, 1)
        inbox.step()
        files.full, files.error = True, errno.EBADF
        for action in (inbox.step, inbox.take_down):
            with pytest.raises(OSError, match="Bad file descriptor"):
                action()
            assert box_size(room) > 0
            hand = read_in_hand(files, room.base, "0")
            assert hand is not None and hand.state == "running"

    def test_a_run_that_goes_while_the_disk_is_full_frees_the_inbox(self, tmp_path: Path) -> None:
        files = FullDisk()
        room = PostRoom(tmp_path, files)
        room.run(1)
        room.run(1, "s")
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 0, 1)
        files.full = True
        finish(inbox)
        os.rename(room.base.result_folder("r"), f"{room.base.trash}/r")
        files.full = False
        finish(inbox)
        send(room, 1, 2, "s", 0, 0, 1)
        finish(inbox)
        assert room.values("s") == {0: 0}

    def test_a_bad_file_in_the_way_blocks_until_the_master_has_put_it_aside(
        self, room: PostRoom
    ) -> None:
        room.run(1)
        Path(room.base.result("r", 0)).write_bytes(b"torn")
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 0, 1)
        finish(inbox)
        assert inbox.step() is Step.BLOCKED
        os.unlink(room.base.result("r", 0))
        finish(inbox)
        assert room.values() == {0: 0}


class TestSomebodyElse:
    def test_what_others_have_covered_is_dropped_and_the_rest_follows(self, room: PostRoom) -> None:
        room.run(4)
        room.files.write_new(room.base.result("r", 0), results(0, ["theirs", "theirs"]))
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 0, 4)
        finish(inbox)
        assert room.values() == {0: "theirs", 1: "theirs", 2: 4, 3: 6}

    def test_a_worker_that_was_taken_for_dead_publishes_nothing_and_ends(
        self, room: PostRoom
    ) -> None:
        room.run(2)
        inbox = room.inbox()
        send(room, 1, 1, "r", 0, 0, 2)
        inbox.step()
        inbox.step()
        close_outboxes(room.files, room.base, "0")
        with pytest.raises(FileNotFoundError):
            finish(inbox)
        assert room.values() == {}


def test_taking_down_publishes_what_is_done(room: PostRoom) -> None:
    room.run(3)
    inbox = room.inbox()
    send(room, 1, 1, "r", 0, 0, 3)
    inbox.step()
    inbox.step()
    inbox.take_down()
    assert set(room.values()) == {0}
    assert not os.path.exists(room.base.mailbox("0"))


def test_who_was_taken_for_dead_takes_down_no_mailbox_of_another(room: PostRoom) -> None:
    old = room.inbox()
    room.die()
    take_back_letter(room.files, room.base, "0", reason="its lock was free", at=0.0)
    room.inbox()
    old.take_down()
    assert os.path.exists(room.base.mailbox("0"))


class TestAFailure:
    @pytest.mark.parametrize(("queue", "begun"), [(True, 3), (False, 5)])
    def test_in_the_queue_what_is_behind_it_is_given_back(
        self, room: PostRoom, queue: bool, begun: int
    ) -> None:
        def run_job(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
            return (fails if job == 2 else double)(info, sheet, job, attempt)

        room.run(5, queue=queue)
        inbox = room.inbox(run_job=run_job)
        send(room, 1, 1, "r", 0, 0, 5)
        finish(inbox)
        assert first_missing(room.files, room.base, "r", 0, 5) == begun
        assert box_size(room) == 0

    @pytest.mark.parametrize(("fails", "begun"), [(True, 1), (False, 3)])
    def test_also_if_a_minder_has_published_it(
        self, room: PostRoom, fails: bool, begun: int
    ) -> None:
        def run_job(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> None:
            failure = Failure(Outcome.FAILED, "exit 1", "no") if fails else None
            ended = [JobEnd(failure=failure)]
            ran_by = RanBy("0", "", 0, 0.0)
            publish_results(
                room.files, room.base, info, job, job + 1,
                lambda first: pack_outcomes(first, ended, ran_by),
            )  # fmt: skip

        room.run(3, queue=True)
        inbox = room.inbox(run_job=run_job)
        send(room, 1, 1, "r", 0, 0, 3)
        finish(inbox)
        assert first_missing(room.files, room.base, "r", 0, 3) == begun


class TestALongJob:
    def test_what_is_behind_it_is_left_to_others_and_what_was_before_it_published(
        self, room: PostRoom
    ) -> None:
        def run_job(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
            if job == 2:
                inbox.linger()
                assert set(room.values()) == {0, 1}
                letter = room.letter()
                assert letter is not None and (letter.first, letter.stop) == (0, 3)
            return double(info, sheet, job, attempt)

        room.run(5)
        inbox = room.inbox(run_job=run_job)
        send(room, 1, 1, "r", 0, 0, 5)
        finish(inbox)
        assert set(room.values()) == {0, 1, 2}
        assert box_size(room) == 0

    def test_the_rest_goes_to_another_while_it_runs(self, room: PostRoom) -> None:
        def run_job(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
            if job == 1:
                inbox.linger()
                for _ in range(4):
                    room.step(dispatcher)
                    finish(other)
                assert set(room.values()) == {0, 2, 3, 4}
            return double(info, sheet, job, attempt)

        room.run(5)
        inbox = room.inbox(run_job=run_job)
        send(room, 1, 1, "r", 0, 0, 5)
        dispatcher = room.dispatcher()
        other = room.inbox("1")
        finish(inbox)
        for _ in range(3):
            room.step(dispatcher)
        assert set(room.values()) == set(range(5))
        delivered = [range(first, first + count) for _, first, count in room.delivered]
        assert sorted(job for jobs in delivered for job in jobs) == [0, 1, 2, 3, 4]

    def test_a_letter_that_takes_longer_than_it_should_is_given_back(self, room: PostRoom) -> None:
        def slow(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
            room.clock.now += HOLD_S / 2
            return double(info, sheet, job, attempt)

        room.run(9)
        inbox = room.inbox(run_job=slow)
        send(room, 1, 1, "r", 0, 0, 9)
        finish(inbox)
        assert set(room.values()) == {0, 1}
        assert box_size(room) == 0

    def test_a_single_job_may_take_as_long_as_it_likes(self, room: PostRoom) -> None:
        def slow(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
            inbox.linger()
            room.clock.now += 100 * HOLD_S
            return double(info, sheet, job, attempt)

        room.run(1)
        inbox = room.inbox(run_job=slow)
        send(room, 1, 1, "r", 0, 0, 1)
        finish(inbox)
        assert set(room.values()) == {0}


def test_a_command_is_not_begun_before_the_tasks_before_it_are_published(room: PostRoom) -> None:
    def by_minder(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd | None:
        if job == 0:
            return double(info, sheet, job, attempt)
        append_results(room, made, job)
        return None

    made = room.run(1)
    log = AppendLogWriter(room.files, room.base, "r", durable=False)
    log.append(1, pack_jobs(0, "commands:run", JobOptions(), None, [{"x": 1}]))
    inbox = room.inbox(run_job=by_minder)
    send(room, 1, 1, "r", 0, 0, 2)
    finish(inbox)
    assert room.values() == {0: 0, 1: "by its minder"}


def append_results(room: PostRoom, made: RunInfo, job: int) -> None:
    assert set(room.values()) == {0}
    temporary = room.base.temporary()
    room.files.write_new(temporary, results(job, ["by its minder"]))
    assert room.files.publish(temporary, room.base.result("r", job))


def test_an_inbox_leaves_nothing_in_its_outbox(tmp_path: Path) -> None:
    room = PostRoom(tmp_path)
    room.run(3)
    inbox, dispatcher = room.inbox(), room.dispatcher()
    for _ in range(12):
        room.step(dispatcher)
        inbox.step()
    assert room.values() == {0: 0, 1: 2, 2: 4}
    (outbox,) = Path(room.base.tmp).iterdir()
    assert len(list(outbox.iterdir())) == 1, "the next results have their file already"
    inbox.take_down()
    assert not list(outbox.iterdir())
