"""What the acting Master makes of requests, on a real folder, moved by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from postroom.commands.spec import CommandSpec
from postroom.dispatch.dispatcher import Dispatcher
from postroom.parcel.sheets import Failure, JobEnd, JobSheet, Outcome, OutcomeSheet
from postroom.queue.submission import submit
from postroom.session.inbox import Inbox, Step
from postroom.store.agents import AgentInfo
from postroom.store.append_log import RecordReader
from postroom.store.job_ids import JobId, JobIds
from postroom.store.requests import (
    Orders,
    Request,
    RequestVerb,
    ask,
    list_stops,
    pending,
    read_orders,
    read_stop,
)
from postroom.store.runs import Note, RunInfo, publish_results, read_parcel_bytes, write_note
from postroom.store.scheduling import SchedulingOptions
from tests.by_hand import PostRoom, results


def run_command(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
    """A stand-in for a session: a command that says `false` fails."""
    if sheet.plain(job)["command"] == "false":
        return JobEnd(failure=Failure(Outcome.FAILED, "failed", "exit code 1"), seconds=1.0)
    return JobEnd({"exit": 0}, seconds=1.0)


class QueueRoom(PostRoom):
    """A base with commands in its queue."""

    def queue(self, *commands: str, project: str = "p", **scheduling: Any) -> list[JobId]:
        asks = [
            CommandSpec(one, cwd="/", name=one, scheduling=SchedulingOptions(**scheduling))
            for one in commands
        ]
        return submit(self.files, self.base, asks, project=project)

    def ask(self, verb: RequestVerb, *jobs: JobId, **fields: Any) -> None:
        ask(self.files, self.base, Request(verb, jobs=jobs, by="ada", **fields))

    def look(self, dispatcher: Dispatcher) -> None:
        """Let a second pass, so that everything is looked at."""
        self.clock.now += 1.1
        dispatcher.step(self.clock.now)

    def sent(self, agent_id: str = "0") -> str | None:
        """The command that an agent has in its mailbox."""
        letter = self.letter(agent_id)
        return None if letter is None else self.name(JobId(letter.run, letter.first))

    def name(self, job: JobId) -> str:
        reader = RecordReader(self.files, self.base, job.run)
        try:
            return reader.open(job.number, 0).name(job.number)
        finally:
            reader.close()

    def order(self, dispatcher: Dispatcher, inbox: Inbox) -> list[str]:
        """Run what can be run; the commands in the order in which they were sent."""
        order = []
        while True:
            self.look(dispatcher)
            name = self.sent()
            if name is None:
                return order
            order.append(name)
            while inbox.step() is Step.WORKED:
                pass

    def outcome(self, job: JobId) -> Failure | str | None:
        path = self.base.result(job.run, job.number)
        if not self.files.exists(path):
            return "not done"
        return OutcomeSheet(path, read_parcel_bytes(self.files, path)).done(job.number).failure


@pytest.fixture
def room(tmp_path: Path) -> QueueRoom:
    return QueueRoom(tmp_path)


def words(found: Failure | str | None) -> str:
    assert isinstance(found, Failure)
    assert found.outcome is Outcome.CANCELLED
    return found.message


class TestOrder:
    def test_by_priority_then_by_turns_between_runs_then_in_order(self, room: QueueRoom) -> None:
        room.queue("a", "b", "c", project="p")
        room.queue("x", "y", project="q")
        room.queue("urgent", project="q", priority=3)
        inbox = room.inbox(run_job=run_command)
        order = room.order(room.dispatcher(), inbox)
        assert order[0] == "urgent"
        assert [name for name in order if name in "abc"] == ["a", "b", "c"]
        assert [name for name in order if name in "xy"] == ["x", "y"]
        assert sorted(order[1:3]) == ["a", "x"]

    def test_a_priority_can_be_changed_and_outlives_the_master(self, room: QueueRoom) -> None:
        _, second, third = room.queue("a", "b", "c")
        dispatcher = room.dispatcher()
        room.ask(RequestVerb.PRIORITY, third, value=9)
        room.ask(RequestVerb.MOVE, second, value="first")
        room.look(dispatcher)
        assert pending(room.files, room.base) == []
        inbox = room.inbox(run_job=run_command)
        assert room.order(room.dispatcher(), inbox) == ["c", "b", "a"]

    def test_a_run_as_a_whole_can_be_raised(self, room: QueueRoom) -> None:
        room.run(2)
        (low,) = room.queue("a", priority=-1)
        room.ask(RequestVerb.PRIORITY, runs=(low.run,), value=1)
        room.inbox(run_job=run_command)
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        assert room.sent() == "a"

    def test_move_last_and_before(self, room: QueueRoom) -> None:
        a, b, _, d = room.queue("a", "b", "c", "d")
        dispatcher = room.dispatcher()
        room.ask(RequestVerb.MOVE, a, value="last")
        room.ask(RequestVerb.MOVE, d, value=str(b))
        room.look(dispatcher)
        inbox = room.inbox(run_job=run_command)
        assert room.order(dispatcher, inbox) == ["d", "b", "c", "a"]

    def test_a_job_goes_only_where_it_fits(self, room: QueueRoom) -> None:
        room.queue("two cards", gpus=2)
        room.queue("large", memory_mib=40_000)
        room.queue("any")
        for agent_id, gpus, memory in (("0", 1, 24_000), ("1", 2, 24_000), ("2", 1, 48_000)):
            info = AgentInfo(agent_id, "g", "G", "h", "b", 1, 1, 0.0, "", gpus, memory)
            room.files.write_new(room.base.agent_info(agent_id), [info.encode()])
            room.inbox(agent_id, run_command)
        room.look(room.dispatcher())
        assert [room.sent(n) for n in "012"] == ["any", "two cards", "large"]


class TestWaiting:
    def test_held_jobs_wait_until_they_are_released(self, room: QueueRoom) -> None:
        (held,) = room.queue("held", held=True)
        (other,) = room.queue("other")
        inbox = room.inbox(run_job=run_command)
        dispatcher = room.dispatcher()
        room.ask(RequestVerb.HOLD, other)
        assert room.order(dispatcher, inbox) == []
        room.ask(RequestVerb.RELEASE, held)
        assert room.order(dispatcher, inbox) == ["held"]
        room.look(dispatcher)
        assert list(read_orders(room.files, room.base).held) == [other]

    def test_jobs_of_a_plain_run_can_be_held(self, room: QueueRoom) -> None:
        room.run(3)
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        room.ask(RequestVerb.HOLD, JobId("r", 1))
        for _ in range(4):
            room.look(dispatcher)
            while inbox.step() is Step.WORKED:
                pass
        assert room.values() == {0: 0, 2: 4}
        again = room.dispatcher()
        room.look(again)
        assert room.letter() is None
        room.ask(RequestVerb.RELEASE, JobId("r", 1))
        room.look(again)
        assert inbox.step() is Step.WORKED and inbox.step() is Step.WORKED
        room.look(again)
        assert room.values() == {0: 0, 1: 2, 2: 4}

    def test_a_job_begins_after_those_it_waits_for(self, room: QueueRoom) -> None:
        first, second = room.queue("first", "second")
        room.queue("after", after=(first, second), priority=9)
        inbox = room.inbox(run_job=run_command)
        assert room.order(room.dispatcher(), inbox) == ["first", "second", "after"]

    def test_when_one_fails_what_waits_for_it_is_cancelled_along_the_chain(
        self, room: QueueRoom
    ) -> None:
        (bad,) = room.queue("false")
        (after,) = room.queue("after", after=(bad,))
        (chained,) = room.queue("chained", after=(after,), project="q")
        (anyway,) = room.queue("anyway", after_any=(bad,))
        inbox = room.inbox(run_job=run_command)
        assert room.order(room.dispatcher(), inbox) == ["false", "anyway"]
        assert bad.short in words(room.outcome(after))
        assert after.short in words(room.outcome(chained))
        assert room.outcome(anyway) is None

    def test_thousands_may_wait_for_one_and_a_chain_may_be_long(self, room: QueueRoom) -> None:
        (bad,) = room.queue("false")
        crowd = room.queue(*["after"] * 600, after=(bad,))
        chain = [bad]
        for _ in range(20):
            chain += room.queue("next", after=(chain[-1],), project="chain")
        room.ask(RequestVerb.KILL, bad)
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        assert len(dispatcher.runs) == 2
        assert all(active.queue.finished for active in dispatcher.runs.values())
        assert bad.short in words(room.outcome(crowd[0]))

    def test_what_has_ended_before_is_known(self, room: QueueRoom) -> None:
        good, bad = room.queue("good", "false")
        inbox = room.inbox(run_job=run_command)
        dispatcher = room.dispatcher()
        room.order(dispatcher, inbox)
        (goes,) = room.queue("goes", after=(good,))
        (vain,) = room.queue("vain", after=(bad,))
        assert room.order(room.dispatcher(), inbox) == ["goes"]
        assert room.outcome(goes) is None
        assert bad.short in words(room.outcome(vain))

    @pytest.mark.parametrize("scope", ["everything", "projects", "runs"])
    def test_a_paused_queue_begins_nothing(self, room: QueueRoom, scope: str) -> None:
        (job,) = room.queue("a")
        names: Any = {"everything": True, "projects": ("p",), "runs": (job.run,)}[scope]
        inbox = room.inbox(run_job=run_command)
        dispatcher = room.dispatcher()
        room.ask(RequestVerb.PAUSE, **{scope: names})
        assert room.order(dispatcher, inbox) == []
        again = room.dispatcher()
        assert room.order(again, inbox) == []
        room.ask(RequestVerb.RESUME, **{scope: names})
        assert room.order(again, inbox) == ["a"]

    def test_a_drained_agent_gets_nothing(self, room: QueueRoom) -> None:
        room.queue("a", "b")
        for agent_id in "01":
            room.inbox(agent_id, run_command)
        dispatcher = room.dispatcher()
        room.ask(RequestVerb.DRAIN, agents=("0",))
        room.look(dispatcher)
        room.look(dispatcher)
        assert [room.sent("0"), room.sent("1")] == [None, "a"]
        room.ask(RequestVerb.FILL, everything=True)
        room.look(dispatcher)
        assert room.sent("0") == "b"


class TestKilling:
    def test_a_waiting_job_is_cancelled_and_never_sent(self, room: QueueRoom) -> None:
        a, _ = room.queue("a", "b")
        inbox = room.inbox(run_job=run_command)
        room.ask(RequestVerb.KILL, a)
        assert room.order(room.dispatcher(), inbox) == ["b"]
        assert words(room.outcome(a)) == "killed by ada"
        assert read_orders(room.files, room.base) == Orders()

    def test_its_holder_is_told_and_the_order_ends_with_the_job(self, room: QueueRoom) -> None:
        (a,) = room.queue("a")
        inbox = room.inbox(run_job=run_command)
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        room.ask(RequestVerb.KILL, a)
        room.look(dispatcher)
        stop = read_stop(room.files, room.base, a.run, a.number, attempt=1)
        assert stop is not None and stop.final
        assert read_stop(room.files, room.base, a.run, a.number, attempt=2) is None
        while inbox.step() is Step.WORKED:
            pass
        room.look(dispatcher)
        assert list_stops(room.files, room.base) == []
        room.look(dispatcher)
        assert read_orders(room.files, room.base) == Orders()

    def test_one_that_comes_back_is_not_sent_again(self, room: QueueRoom) -> None:
        (a,) = room.queue("a")
        room.inbox(run_job=run_command)
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        room.ask(RequestVerb.KILL, a)
        room.look(dispatcher)
        room.die()
        room.look(dispatcher)
        assert words(room.outcome(a)) == "killed by ada"
        assert list_stops(room.files, room.base) == []

    def test_a_master_that_dies_behind_its_orders_leaves_the_rest_to_the_next(
        self, room: QueueRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (a,) = room.queue("a")
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        room.ask(RequestVerb.KILL, a)
        monkeypatch.setattr(dispatcher._collector, "cancel", _die)
        with pytest.raises(KeyboardInterrupt):
            room.look(dispatcher)
        assert room.outcome(a) == "not done"
        assert list(read_orders(room.files, room.base).killed) == [a]
        inbox = room.inbox(run_job=run_command)
        assert room.order(room.dispatcher(), inbox) == []
        assert words(room.outcome(a)) == "killed by ada"

    def test_a_run_that_rests_remembers_who_is_to_die(self, room: QueueRoom) -> None:
        room.run(1, embedded=True)
        dispatcher = room.dispatcher()
        room.ask(RequestVerb.KILL, JobId("r", 0))
        room.look(dispatcher)
        assert pending(room.files, room.base) == []
        lock = room.files.try_lock(room.base.wanted("r"), shared=True)
        assert lock is not None
        dispatcher.hint({"r"})
        room.look(dispatcher)
        assert words(room.outcome(JobId("r", 0))) == "killed by ada"
        lock.release()

    def test_a_job_that_was_stopped_goes_on_with_no_blame(self, room: QueueRoom) -> None:
        (a,) = room.queue("a")
        inbox = room.inbox(run_job=run_command)
        dispatcher = room.dispatcher()
        for attempt in range(1, 6):
            room.look(dispatcher)
            letter = room.letter()
            assert letter is not None and (letter.attempt, letter.failed) == (attempt, 0)
            note = Note(a.run, 0, attempt, "stopped", "0", reason="stopped by ada", at=0.0)
            write_note(room.files, room.base, note)
            inbox.box.clear()
        assert room.outcome(a) == "not done"

    def test_pausing_with_preempt_tells_what_runs(self, room: QueueRoom) -> None:
        (a,) = room.queue("a")
        (b,) = room.queue("b", project="q")
        for agent_id in "01":
            room.inbox(agent_id, run_command)
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        room.ask(RequestVerb.PAUSE, projects=("q",), preempt=True)
        room.look(dispatcher)
        assert list_stops(room.files, room.base) == [b]
        stop = read_stop(room.files, room.base, b.run, b.number, attempt=1)
        assert stop is not None and not stop.final
        assert a not in list_stops(room.files, room.base)


class TestRequests:
    def test_what_is_no_request_is_put_aside_and_the_rest_is_done(self, room: QueueRoom) -> None:
        (a,) = room.queue("a")
        room.files.make_folder(room.base.control)
        for at, text in enumerate((b"{", b'{"version": 1, "verb": 7}', b"[]")):
            path = f"{room.base.control}/{at:020d}-aaaaaa.json"
            room.files.write_new(path, [text])
        room.ask(RequestVerb.KILL, a)
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        assert pending(room.files, room.base) == []
        assert words(room.outcome(a)) == "killed by ada"
        rejected = room.files.names(room.base.rejected)
        assert len([name for name in rejected if name.endswith(".json")]) == 3

    def test_requests_about_what_is_over_or_never_was_leave_nothing(self, room: QueueRoom) -> None:
        (a,) = room.queue("a")
        inbox = room.inbox(run_job=run_command)
        dispatcher = room.dispatcher()
        room.order(dispatcher, inbox)
        for verb in (RequestVerb.KILL, RequestVerb.HOLD, RequestVerb.RELEASE):
            room.ask(verb, a, JobId("20010101-000000-aaaaaa", 3))
        room.look(dispatcher)
        assert room.outcome(a) is None
        assert read_orders(room.files, room.base) == Orders()

    def test_a_request_of_a_later_version_waits_for_a_later_master(self, room: QueueRoom) -> None:
        (a,) = room.queue("a")
        room.files.make_folder(room.base.control)
        later = [b'{"version": 1, "verb": "dance"}', b'{"version": 2}']
        later.append(b'{"version": 1, "verb": "hold", "jobs": 7, "until": 5.0}')
        for at, text in enumerate(later):
            room.files.write_new(f"{room.base.control}/{at:020d}-aaaaaa.json", [text])
        room.ask(RequestVerb.KILL, a)
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        assert words(room.outcome(a)) == "killed by ada", "the others are carried out"
        assert len(pending(room.files, room.base)) == 3
        assert room.files.names(room.base.rejected) == []
        assert not dispatcher.step(room.clock.now + 10), "nothing moves"

    @pytest.mark.parametrize(
        "data", [b"nonsense", b"", b'{"version": 2}', b'{"version": 1, "x": 1}']
    )
    def test_nothing_begins_while_the_orders_cannot_be_read(
        self, room: QueueRoom, data: bytes
    ) -> None:
        a, b = room.queue("a", "b")
        running, idle = room.inbox("0", run_job=run_command), room.inbox("1", run_job=run_command)
        before = room.dispatcher()
        room.ask(RequestVerb.HOLD, b)
        room.look(before)
        kept = Path(room.base.orders).read_bytes()
        assert room.letter("0") is not None
        Path(room.base.orders).write_bytes(data)
        dispatcher = room.dispatcher()
        room.ask(RequestVerb.PRIORITY, b, value=3)
        while running.step() is not Step.IDLE:
            pass
        for _ in range(3):
            room.look(dispatcher)
        assert room.outcome(a) is None, "what runs goes on"
        assert [idle.step(), running.step()] == [Step.IDLE] * 2, "nothing else is begun"
        assert Path(room.base.orders).read_bytes() == data
        assert len(pending(room.files, room.base)) == 1, (
            "requests wait: they would replace the file"
        )
        Path(room.base.orders).write_bytes(kept)
        room.look(dispatcher)
        assert read_orders(room.files, room.base).held == {b: True}
        assert [idle.step(), running.step()] == [Step.IDLE] * 2, "it is held, as before"
        Path(room.base.orders).write_bytes(data)
        dispatcher = room.dispatcher()
        os.unlink(room.base.orders)
        room.look(dispatcher)
        assert Step.WORKED in (idle.step(), running.step()), "somebody has decided"


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_held_job_whose_result_came_unseen_is_found_when_it_is_released(room: QueueRoom) -> None:
    """Its holder was taken for dead, and was not."""
    made = room.run(1)
    job = JobId("r", 0)
    dispatcher = room.dispatcher()
    room.ask(RequestVerb.HOLD, job)
    room.look(dispatcher)
    publish_results(room.files, room.base, made, 0, 1, lambda first: results(first, [7]))
    inbox = room.inbox()
    room.ask(RequestVerb.RELEASE, job)
    for _ in range(2):
        room.look(dispatcher)
        while inbox.step() is Step.WORKED:
            pass
    assert room.delivered == [("r", 0, 1)]
    assert room.values() == {0: 7}
    assert read_orders(room.files, room.base).held == {}


def test_a_long_run_is_killed_at_once(room: QueueRoom) -> None:
    """Seventy thousand jobs, in one request and one parcel of results."""
    count = 70_000
    room.run(count)
    jobs = JobIds(JobId("r", number) for number in range(count))
    ask(room.files, room.base, Request(RequestVerb.KILL, jobs=jobs, by="ada"))
    dispatcher = room.dispatcher()
    room.look(dispatcher)
    assert pending(room.files, room.base) == []
    assert dispatcher.runs["r"].queue.finished
    assert words(room.outcome(JobId("r", 0))) == "killed by ada"
    room.look(dispatcher)
    assert read_orders(room.files, room.base) == Orders()


class TestMistakes:
    def test_a_project_whose_jobs_fail_at_once_and_alike_is_paused(self, room: QueueRoom) -> None:
        room.queue(*["false"] * 9, project="typo")
        room.queue("a", project="other")
        dispatcher = room.dispatcher()
        order = room.order(dispatcher, room.inbox(run_job=run_command))
        assert sorted(order) == ["a"] + ["false"] * 5
        orders = read_orders(room.files, room.base)
        assert orders.paused_projects == {"typo"}
        assert "5 jobs in a row failed at once with" in orders.paused_why["typo"]
        room.ask(RequestVerb.RESUME, projects=("typo",))
        room.look(dispatcher)
        assert read_orders(room.files, room.base).paused_why == {}
        assert room.sent() == "false"

    def test_a_success_in_between_means_that_it_is_no_mistake_of_all(self, room: QueueRoom) -> None:
        room.queue(*(["false"] * 4 + ["good"]) * 3)
        order = room.order(room.dispatcher(), room.inbox(run_job=run_command))
        assert len(order) == 15

    def test_a_project_pauses_after_as_many_failures_in_a_row_as_were_set(
        self, room: QueueRoom
    ) -> None:
        room.ask(RequestVerb.FAILURES, projects=("p",), value=2)
        room.queue("false", "good", "false", "false", "false")
        room.queue("a", project="other")
        dispatcher = room.dispatcher()
        inbox = room.inbox(run_job=run_command)
        assert sorted(room.order(dispatcher, inbox)) == ["a"] + ["false"] * 3 + ["good"]
        orders = read_orders(room.files, room.base)
        assert orders.paused_projects == {"p"}
        assert orders.paused_why["p"].startswith("2 jobs in a row failed, the last with")
        room.ask(RequestVerb.RESUME, projects=("p",))
        assert room.order(dispatcher, inbox) == ["false"]  # counted anew

    def test_the_queue_pauses_after_failures_of_any_project(self, room: QueueRoom) -> None:
        room.ask(RequestVerb.FAILURES, everything=True, value=3)
        for project in "pqrs":
            room.queue("false", project=project)
        dispatcher = room.dispatcher()
        inbox = room.inbox(run_job=run_command)
        assert room.order(dispatcher, inbox) == ["false"] * 3
        assert "3 jobs in a row" in read_orders(room.files, room.base).paused_why[""]
        room.ask(RequestVerb.RESUME, everything=True)
        assert room.order(dispatcher, inbox) == ["false"]
        assert read_orders(room.files, room.base).paused_why == {}

    def test_the_rest_of_an_array_is_held_after_its_failures(self, room: QueueRoom) -> None:
        jobs = room.queue(*["false"] * 6, group="g", group_failures=2)
        room.queue("good")
        dispatcher = room.dispatcher()
        order = room.order(dispatcher, room.inbox(run_job=run_command))
        assert order == ["false", "false", "good"]
        assert set(read_orders(room.files, room.base).held) == set(jobs[2:])

    def test_a_project_has_no_more_jobs_out_than_its_limit(self, room: QueueRoom) -> None:
        room.ask(RequestVerb.LIMIT, projects=("p",), value=1)
        room.queue("a", "b")
        inboxes = [room.inbox(str(n), run_job=run_command) for n in range(2)]
        dispatcher = room.dispatcher()
        room.look(dispatcher)
        assert sorted(map(str, (room.sent("0"), room.sent("1")))) == ["None", "a"]
        room.ask(RequestVerb.LIMIT, projects=("p",), value=0)
        room.look(dispatcher)
        assert {room.sent("0"), room.sent("1")} == {"a", "b"}
        assert len(inboxes) == 2
