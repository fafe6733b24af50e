"""How people name jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.store.job_ids import JobId, JobIds, UnknownJobError, find_job, find_jobs, match_run
from tests.by_hand import PostRoom


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    made = PostRoom(tmp_path)
    made.run(5, "20260101-000000-abc123")
    made.run(1, "20260102-000000-def123")
    return made


def test_a_job_id_comes_back_from_its_text() -> None:
    job = JobId("20260101-000000-abc123", 17)
    assert JobId.parse(str(job)) == job
    assert job.short == "abc123/17"


@pytest.mark.parametrize("text", ["", "1", "a/", "/1", "../1", "a/-1", "a/1234567890", "a/\u0663"])
def test_what_is_no_job_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a job's id"):
        JobId.parse(text)


@given(st.lists(st.builds(JobId, st.sampled_from(["a", "b-1"]), st.integers(0, 9)), max_size=20))
def test_some_jobs_come_back_in_their_order(jobs: list[JobId]) -> None:
    assert JobIds.parse(str(JobIds(jobs))) == tuple(jobs)


def test_neighbours_are_one_range() -> None:
    jobs = [JobId("r", n) for n in (3, 4, 5, 9, 8, 9)]
    assert str(JobIds(jobs)) == "r/3-5 r/9 r/8-9"


@pytest.mark.parametrize("text", ["r", "r/", "r/1-", "../1", "r/1-2-3", "a b/1", "r/0-999999999"])
def test_what_is_no_range_of_jobs_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a range of jobs|names more than 1000000 jobs"):
        JobIds.parse(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("abc123", [0, 1, 2, 3, 4]), ("abc123/3", [3]), ("abc123/1-3", [1, 2, 3]), ("def123", [0])],
)
def test_jobs_are_found_by_the_end_of_their_runs_id(
    room: PostRoom, text: str, numbers: list[int]
) -> None:
    assert [job.number for job in find_jobs(room.files, room.base, text)] == numbers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("123", "may mean"),
        ("fff", "there is no run 'fff'"),
        ("abc123/5", "has jobs 0 to 4"),
        ("abc123/3-1", "there is no job"),
        ("a b", "is not a job"),
    ],
)
def test_what_means_no_job_says_why(room: PostRoom, text: str, says: str) -> None:
    with pytest.raises(UnknownJobError, match=says):
        find_jobs(room.files, room.base, text)


def test_one_job_is_named_by_its_run_only_if_it_is_alone(room: PostRoom) -> None:
    assert find_job(room.files, room.base, "def123").number == 0
    with pytest.raises(UnknownJobError, match="means 5 jobs"):
        find_job(room.files, room.base, "abc123")


def test_a_whole_id_beats_the_end_of_another() -> None:
    assert match_run("b", ["a-b", "b"]) == "b"
