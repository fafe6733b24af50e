"""The runs of a base as the acting Master follows them: a project's queue in its append log."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from postroom.commands.spec import COMMAND, CommandSpec
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.project_queue import ProjectQueue
from postroom.dispatch.registry import Registry
from postroom.parcel import sheets
from postroom.parcel.sheets import JobOptions, Outcome, OutcomeSheet, pack_jobs
from postroom.queue.submission import submit
from postroom.session.inbox import Inbox, Step
from postroom.store.append_log import RECORD_BYTES, AppendLogWriter
from postroom.store.job_ids import JobId
from postroom.store.journal import NullJournal
from postroom.store.mailbox import read_in_hand
from postroom.store.requests import Orders
from postroom.store.runs import (
    Note,
    publish_results,
    read_parcel_bytes,
    want,
    write_note,
)
from postroom.store.scheduling import SchedulingOptions
from tests.by_hand import PostRoom, results


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    return PostRoom(tmp_path)


def queue(room: PostRoom, *commands: str, **options: int) -> list[JobId]:
    scheduling = SchedulingOptions(**options)  # type: ignore[arg-type]
    asks = [CommandSpec(command, cwd="/", scheduling=scheduling) for command in commands]
    return submit(room.files, room.base, asks)


def load(room: PostRoom) -> Registry:
    registry = Registry(room.files, room.base, NullJournal(), Orders())
    registry.recover(lambda run: [])
    return registry


def priorities(registry: Registry) -> list[int]:
    (active,) = registry.runs.values()
    assert isinstance(active.queue, ProjectQueue)
    return [active.queue._scheduling[job].priority for job in range(active.queue.n_jobs)]


def test_a_projects_run_is_one_append_log(room: PostRoom) -> None:
    first, second = queue(room, "a"), queue(room, "b", "c")
    assert [job.number for job in first + second] == [0, 1, 2]
    run = first[0].run
    environment, *names = sorted(room.files.names(room.base.run_folder(run)))
    assert environment.endswith(".env")
    assert names == ["jobs.log", "run.json", "wanted.lock"]


def test_what_waits_for_a_removed_job_is_cancelled_since_nobody_knows_how_that_ended(
    room: PostRoom,
) -> None:
    (gone,) = queue(room, "a")
    waits = CommandSpec("b", cwd="/", scheduling=SchedulingOptions(after=(gone,)))
    (job,) = submit(room.files, room.base, [waits], project="other")
    shutil.rmtree(room.base.run_folder(gone.run))
    dispatcher = room.dispatcher()
    room.step(dispatcher)
    path = room.base.result(job.run, 0)
    failure = OutcomeSheet(path, read_parcel_bytes(room.files, path)).failures[0]
    assert failure.outcome is Outcome.CANCELLED
    assert failure.message.endswith("was removed: how it ended is not known")


def test_scheduling_options_are_read_from_records_large_and_small(room: PostRoom) -> None:
    queue(room, "a", priority=1)
    queue(room, "b", "c")
    queue(room, "x" * RECORD_BYTES, priority=4)
    registry = load(room)
    queue(room, "d", "e", priority=5)
    registry.hint(None)
    assert registry.refresh(lambda run: [])
    assert priorities(registry) == [1, 0, 0, 4, 5, 5]


def test_a_job_whose_record_is_lost_has_no_options_and_the_next_keep_theirs(room: PostRoom) -> None:
    queue(room, "a", priority=1)
    (job,) = queue(room, "b", priority=2)
    queue(room, "c", priority=3)
    path = Path(room.base.append_log(job.run))
    data = path.read_bytes()
    at = data.index(b'"command":"b"')
    path.write_bytes(data[:at] + b"#" + data[at + 1 :])
    assert priorities(load(room)) == [1, 0, 3]


def test_a_run_that_rests_is_read_again_only_if_an_agent_has_it(room: PostRoom) -> None:
    room.run(2, embedded=True)
    at_rest: set[str] = set()

    def again(sent: list[tuple[int, int]]) -> Registry:
        registry = Registry(room.files, room.base, NullJournal(), Orders(), at_rest)
        registry.recover(lambda run: sent)
        return registry

    assert not again([]).runs and at_rest == {"r"}
    shutil.move(room.base.run_info("r"), room.base.tmp)
    assert not again([]).runs and at_rest == {"r"}
    shutil.move(f"{room.base.tmp}/run.json", room.base.run_folder("r"))
    assert list(again([(0, 1)]).runs) == ["r"] and not at_rest


def test_a_run_that_could_not_be_looked_at_is_not_taken_for_one_that_nobody_wants(
    room: PostRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.run(2, embedded=True)
    lock = want(room.files, room.base, "r")
    registry = load(room)
    assert registry.runs["r"].wanted

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(room.files, "try_lock", fails)
    registry.hint({"r"})
    with pytest.raises(OSError, match="Too many"):
        registry.refresh(lambda run: [], whole=False)
    assert registry.runs["r"].wanted
    lock.release()


# What another version of Postroom has written


def rewrite(path: str, **fields: object) -> bytes:
    """Write a JSON file as another version would; return what it was."""
    before = Path(path).read_bytes()
    Path(path).write_text(json.dumps({**json.loads(before), **fields}))
    return before


@contextlib.contextmanager
def later_sheets() -> Iterator[None]:
    """Parcels are written and read as by a later version."""
    caches = (sheets._job_head, sheets._outcomes_end, sheets._read_jobs_again)
    with mock.patch.object(sheets, "VERSION", 2):
        for cache in (*caches, sheets._read_outcome_head_again):
            cache.cache_clear()
        yield
    for cache in (*caches, sheets._read_outcome_head_again):
        cache.cache_clear()


def rounds(room: PostRoom, dispatcher: Dispatcher, *inboxes: Inbox) -> None:
    for _ in range(12):
        room.step(dispatcher)
        for inbox in inboxes:
            inbox.step()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written to the log."""
    lines: list[str] = []
    monkeypatch.setattr(NullJournal, "log", lambda _, level, text, **fields: lines.append(text))
    return lines


@pytest.mark.parametrize("change", [{"version": 2}, {"version": 0}, {"colour": "red"}])
def test_a_run_of_another_version_is_left_alone(
    room: PostRoom, said: list[str], change: dict[str, object]
) -> None:
    room.run(2)
    room.run(1, "known")
    before = rewrite(room.base.run_info("r"), **change)
    now = Path(room.base.run_info("r")).read_bytes()
    inbox, dispatcher = room.inbox(), room.dispatcher()
    rounds(room, dispatcher, inbox)
    assert room.values("known") == {0: 0}, "the others are served"
    assert room.values() == {}
    assert Path(room.base.run_info("r")).read_bytes() == now
    assert room.files.names(room.base.rejected) == []
    assert [line for line in said if "another version" in line] == said, said
    assert len(said) == 1, "it is said once"
    Path(room.base.run_info("r")).write_bytes(before)
    rounds(room, dispatcher, inbox)
    assert room.values() == {0: 0, 1: 2}


def test_a_note_of_another_version_blames_nobody(room: PostRoom) -> None:
    """Whether the job is to blame is what this version cannot read."""
    room.run(2)
    for attempt in (1, 2, 3):
        write_note(room.files, room.base, Note("r", 0, attempt, "lost", "0", reason="?", at=0.0))
        rewrite(room.base.attempt("r", 0, attempt), kind="postponed")
    inbox, dispatcher = room.inbox(), room.dispatcher()
    rounds(room, dispatcher, inbox)
    assert room.values() == {}, "it is not given up, and not run"
    for attempt in (1, 2, 3):
        os.unlink(room.base.attempt("r", 0, attempt))
    rounds(room, dispatcher, inbox)
    assert room.values() == {0: 0, 1: 2}


def test_a_note_that_comes_from_a_later_session_blames_nobody(room: PostRoom) -> None:
    room.run(1)
    room.inbox()
    dispatcher = room.dispatcher()
    room.step(dispatcher)
    write_note(room.files, room.base, Note("r", 0, 1, "lost", "0", reason="?", at=0.0))
    rewrite(room.base.attempt("r", 0, 1), version=2)
    os.truncate(room.base.mailbox("0"), 0)
    rounds(room, dispatcher)
    assert room.letter() is None, "it is not sent again"


@pytest.mark.parametrize("durable", [False, True])
def test_a_result_of_another_version_stays_and_its_job_is_not_run_again(
    room: PostRoom, durable: bool
) -> None:
    made = room.run(2, durable=durable)
    inbox = room.inbox()
    dispatcher = room.dispatcher()
    room.step(dispatcher)
    letter = room.letter()
    assert letter is not None
    with later_sheets():
        publish_results(room.files, room.base, made, 0, 1, lambda first: results(first, ["later"]))
    os.truncate(room.base.mailbox("0"), 0)
    rounds(room, dispatcher, inbox)
    rounds(room, room.dispatcher(), inbox)
    assert room.files.names(room.base.rejected) == []
    with later_sheets():
        path = room.base.result("r", 0)
        assert OutcomeSheet(path, read_parcel_bytes(room.files, path)).done(0).value == "later"


def test_jobs_of_another_version_get_no_result_from_a_session_that_cannot_read_them(
    room: PostRoom,
) -> None:
    with later_sheets():
        room.run(2)
    inbox = room.inbox()
    dispatcher = room.dispatcher()
    rounds(room, dispatcher, inbox)
    assert inbox.step() is Step.BLOCKED
    hand = read_in_hand(room.files, room.base, "0")
    assert hand is not None and hand.state == "blocked"
    assert room.values() == {}
    assert room.files.names(room.base.attempts("r")) == [], "and nobody is blamed"
    inbox.take_down()
    room.die()
    with later_sheets():
        rounds(room, dispatcher, room.inbox("1"))
        assert room.values() == {0: 0, 1: 2}


def test_a_letter_about_a_run_of_another_version_is_kept(room: PostRoom) -> None:
    room.run(1)
    inbox = room.inbox()
    room.step(room.dispatcher())
    rewrite(room.base.run_info("r"), colour="red")
    assert [inbox.step() for _ in range(3)] == [Step.BLOCKED] * 3
    assert room.letter() is not None
    assert room.values() == {}


def test_jobs_with_unknown_options_are_not_sent(room: PostRoom) -> None:
    """An option of a later version may be one that keeps a job from being begun."""
    (job,) = queue(room, "a", priority=1)
    log = Path(room.base.append_log(job.run))
    log.write_bytes(b"")
    writer = AppendLogWriter(room.files, room.base, job.run, durable=False)
    passed = {"command": "a", "cwd": "/", "scheduling": {"priority": 1, "not_before": 5.0}}
    writer.append(1, pack_jobs(0, COMMAND, JobOptions(), None, [passed]))
    room.inbox()
    dispatcher = room.dispatcher()
    rounds(room, dispatcher)
    assert room.letter() is None
    assert dispatcher.runs == {}
