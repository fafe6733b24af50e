"""`postroom edit`, with a dispatcher that is moved by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import UsageError

from postroom.errors import PostroomError
from postroom.queue.queue_view import QueueView
from postroom.store.edited_jobs import list_edited, read_edited
from postroom.store.requests import RequestVerb, pending, read_orders
from postroom.store.runs import reject
from tests.dispatch.test_request_executor import QueueRoom, run_command

from .kit import call


@pytest.fixture
def room(tmp_path: Path) -> QueueRoom:
    return QueueRoom(tmp_path)


def test_a_waiting_job_is_changed_and_keeps_its_id_and_what_it_was_not_asked(
    room: QueueRoom,
) -> None:
    first, second = room.queue("a", "b", priority=2)
    dispatcher = room.dispatcher()
    call(room.base, "edit", second.short, "-t", "90s", "-p", "7", "-e", "X=1", "--", "c", "-d 1")
    room.look(dispatcher)
    with QueueView(room.base) as view:
        detail = view.job(second)
        assert (detail.job.command, detail.job.name, detail.job.priority) == ("c '-d 1'", "b", 7)
        assert (detail.timeout_s, detail.env, detail.cwd) == (90.0, ["X"], "/")
        assert detail.job.submitted_at == view.job(first).job.submitted_at
        assert view.job(first).job.priority == 2
    # The next Master reads it as it is now.
    inbox = room.inbox(run_job=run_command)
    assert room.order(room.dispatcher(), inbox) == ["b", "a"]


def test_what_was_ordered_before_counts_until_it_is_edited(room: QueueRoom) -> None:
    (job,) = room.queue("a")
    dispatcher = room.dispatcher()
    room.ask(RequestVerb.PRIORITY, runs=(job.run,), value=5)
    room.look(dispatcher)
    call(room.base, "edit", job.short, "-t", "1h")
    room.look(dispatcher)
    assert read_orders(room.files, room.base).priorities == {}
    call(room.base, "edit", job.short, "-p", "1")
    room.look(dispatcher)
    with QueueView(room.base) as view:
        assert view.job(job).job.priority == 1


def test_an_edited_job_waits_for_what_it_is_now_to_wait_for(room: QueueRoom) -> None:
    first, second, third = room.queue("false", "b", "c")
    dispatcher = room.dispatcher()
    call(room.base, "edit", second.short, "--after", first.short)
    call(room.base, "edit", third.short, "--begin", "now+2h")
    inbox = room.inbox(run_job=run_command)
    assert room.order(dispatcher, inbox) == ["false"]
    assert "did not succeed" in str(room.outcome(second))
    call(room.base, "edit", third.short, "--begin", "now")
    assert room.order(dispatcher, inbox) == ["c"]


def test_a_job_goes_only_to_the_agents_that_it_now_asks_for(room: QueueRoom) -> None:
    (job,) = room.queue("a")
    dispatcher = room.dispatcher()
    call(room.base, "edit", job.short, "-g", "4")
    inbox = room.inbox(run_job=run_command)
    assert room.order(dispatcher, inbox) == []
    call(room.base, "edit", job.short, "-g", "1")
    assert room.order(dispatcher, inbox) == ["a"]


def test_a_job_that_has_begun_is_not_changed(room: QueueRoom) -> None:
    (job,) = room.queue("a")
    dispatcher = room.dispatcher()
    call(room.base, "edit", job.short, "-t", "90s")
    name = pending(room.files, room.base)[0]
    request = Path(f"{room.base.control}/{name}")
    kept = request.read_bytes()
    request.unlink()
    room.inbox(run_job=run_command)
    room.look(dispatcher)
    assert room.sent() == "a"
    request.write_bytes(kept)  # it came after the letter
    room.look(dispatcher)
    assert pending(room.files, room.base) == []
    assert list_edited(room.files, room.base, job.run) == []
    with pytest.raises(PostroomError, match=r"nothing to edit: job .* is running"):
        call(room.base, "edit", job.short, "-t", "90s")


def test_an_edit_without_a_change_or_of_a_command_that_cannot_run_is_refused(
    room: QueueRoom,
) -> None:
    (job,) = room.queue("a")
    with pytest.raises(UsageError, match="say what to change"):
        call(room.base, "edit", job.short)
    with pytest.raises(PostroomError, match="does not exist"):
        call(room.base, "edit", job.short, "-C", "/not/there")
    assert pending(room.files, room.base) == []


def test_a_bad_edited_file_is_named_and_the_job_keeps_its_options(room: QueueRoom) -> None:
    (job,) = room.queue("a", gpus=4)
    Path(room.base.edited(job.run, 0)).write_bytes(b"half")
    room.inbox(run_job=run_command)
    room.look(room.dispatcher())
    assert room.sent() is None
    with QueueView(room.base) as view:
        assert view.job(job).job.command == "?"
    reject(room.files, room.base, room.base.edited(job.run, 0), "half")
    assert read_edited(room.files, room.base, job.run, 0) is None
