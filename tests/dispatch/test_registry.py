"""The runs of a base as the acting Master follows them: a project's queue in its append log."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.dispatch.project_queue import ProjectQueue
from postroom.dispatch.registry import Registry
from postroom.parcel.sheets import Outcome, OutcomeSheet
from postroom.queue.submission import submit
from postroom.store.append_log import RECORD_BYTES
from postroom.store.job_ids import JobId
from postroom.store.journal import NullJournal
from postroom.store.requests import Orders
from postroom.store.runs import read_parcel_bytes, want
from postroom.store.scheduling import SchedulingOptions
from tests.by_hand import PostRoom


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
    names = sorted(room.files.names(room.base.run_folder(run)))
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
