"""Submitting commands: what is refused, and into which run they go."""

from __future__ import annotations

import contextlib
import errno

import pytest

from postroom.commands.job_environment import JobEnvironment
from postroom.commands.spec import CommandSpec
from postroom.errors import BaseFolderError, PostroomError
from postroom.queue.submission import check, rerun, submit
from postroom.store.append_log import RecordReader
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.scheduling import SchedulingOptions

from .kit import FILES

TRUE = CommandSpec("true", cwd="/")


def read(base: Base, job: JobId) -> CommandSpec:
    with contextlib.closing(RecordReader(FILES, base, job.run)) as reader:
        return CommandSpec.of_job(reader.open(job.number), job.number)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (TRUE.but(command="  "), "no command"),
        (TRUE.but(command="a\0b"), "zero byte"),
        (TRUE.but(cwd="/no/such/folder"), "does not exist"),
        (TRUE.but(timeout_s=0.0), "time limit"),
        (TRUE.but(retries=-1), "retries"),
        (TRUE.but(scheduling=SchedulingOptions(priority=10**9)), "priority"),
    ],
)
def test_what_could_never_run_is_refused(spec: CommandSpec, reason: str) -> None:
    with pytest.raises(PostroomError, match=reason):
        check(spec)


def test_a_project_has_one_open_run(base: Base) -> None:
    (first,) = submit(FILES, base, [TRUE], project="a")
    (second,) = submit(FILES, base, [TRUE], project="a")
    (other,) = submit(FILES, base, [TRUE], project="b")
    assert (second.run, second.number) == (first.run, 1)
    assert other.run != first.run


def test_a_queued_command_has_a_checkpoint_folder(base: Base) -> None:
    (job,) = submit(FILES, base, [TRUE])
    environment = JobEnvironment.of_this_process().name
    assert read(base, job) == TRUE.but(
        checkpoint=True, retries=0, environment=environment, merged=True
    )


def test_a_rerun_is_not_held_and_names_what_it_repeats(base: Base) -> None:
    held = TRUE.but(scheduling=SchedulingOptions(held=True, priority=2))
    (job,) = submit(FILES, base, [held])
    (again,) = rerun(FILES, base, [(job, held, "default")])
    spec = read(base, again)
    assert spec.rerun_of == job
    assert spec.scheduling == SchedulingOptions(priority=2)


def test_a_full_disk_is_a_sentence(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("postroom.store.files.LocalAppendFile.append", full)
    with pytest.raises(
        BaseFolderError, match=r"cannot submit to .* is full: free some space"
    ) as one:
        submit(FILES, base, [CommandSpec("true", cwd="/")])
    assert "postroom jobs" not in str(one.value)
    with pytest.raises(BaseFolderError, match="whether some of them are in"):
        submit(FILES, base, [CommandSpec("true", cwd="/")] * 2)
