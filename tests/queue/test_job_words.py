"""The words by which people name jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.queue.job_words import job_named, jobs_named, run_named
from postroom.queue.queue_view import QueueView
from postroom.queue.submission import submit
from postroom.store.base import Base
from postroom.store.job_ids import UnknownJobError

from .kit import FILES, queue


def test_the_last_job_and_those_before_it_are_counted_over_all_projects(
    base: Base, view: QueueView
) -> None:
    (first,) = queue(base, "a", project="one")
    second, third = queue(base, "b", "c", project="two")
    (fourth,) = queue(base, "d", project="one")
    named = [job_named(view, word) for word in ("@", "@~1", "@~2", "@~3")]
    assert named == [fourth, third, second, first]
    with pytest.raises(UnknownJobError, match=r"there is no @~4: 4 jobs were submitted"):
        job_named(view, "@~4")


def test_a_number_alone_is_a_job_of_the_run_that_was_submitted_to_last(
    base: Base, view: QueueView
) -> None:
    queue(base, *"abcdef", project="one")
    other = queue(base, "x", "y", project="two")
    assert job_named(view, "1") == other[1]
    assert jobs_named(view, "0-1") == other
    with pytest.raises(UnknownJobError, match="has jobs 0 to 1"):
        job_named(view, "5")  # of another project's run: never guessed
    (again,) = queue(base, "g", project="one")
    assert job_named(view, "6") == again


def test_digits_that_end_a_runs_id_name_the_run(base: Base, view: QueueView) -> None:
    jobs = queue(base, "a", "b")
    run = "20260101-000000-123456"
    for place in (base.run_folder, base.result_folder, base.attempts):
        Path(place(jobs[0].run)).rename(place(run))
    info = Path(base.run_info(run))
    info.write_text(info.read_text().replace(jobs[0].run, run))
    assert [job.run for job in jobs_named(view, "123456")] == [run, run]


def test_a_name_means_its_job_if_no_other_has_it(base: Base, view: QueueView) -> None:
    (named,) = queue(base, "train-a")
    assert job_named(view, "train-a") == named
    queue(base, "train-a")
    with pytest.raises(UnknownJobError, match="2 jobs have the name 'train-a': name one by its id"):
        job_named(view, "train-a")
    with pytest.raises(
        UnknownJobError, match="no job has the name 'train-b', and there is no run 'train-b'"
    ):
        job_named(view, "train-b")


def test_a_short_name_is_no_whole_run_by_chance_and_no_word_is_no_job(
    base: Base, view: QueueView
) -> None:
    runs = (queue(base, "a", project=f"p{number}")[0] for number in range(1000))
    first = next(job for job in runs if job.run[-1].isalpha())
    submit(FILES, base, [CommandSpec("true", cwd="/")], project="unnamed")
    (named,) = queue(base, first.run[-1], project="other")  # the run's id ends so
    assert jobs_named(view, first.run[-1]) == [named]
    assert run_named(view, first.run[-1]) == ""
    assert run_named(view, first.run[-6:]) == first.run
    assert run_named(view, "@") == run_named(view, "0") == run_named(view, "0-1") == ""
    with pytest.raises(UnknownJobError, match="no job has the name ''"):
        jobs_named(view, "")


def test_an_empty_queue_has_no_last_job(view: QueueView) -> None:
    with pytest.raises(UnknownJobError, match=r"nothing was submitted to .* yet"):
        job_named(view, "@")
