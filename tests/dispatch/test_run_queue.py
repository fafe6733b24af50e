"""Numbers and ranges: what waits, what goes into one letter."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from postroom.dispatch.run_queue import (
    FAR_LEAST_S,
    FAR_LETTER_S,
    FORGET_FROM,
    LARGE_LETTER_BYTES,
    LARGE_LETTER_S,
    LAST_S,
    LEAST_S,
    LETTER_S,
    MOST_JOBS,
    Capacity,
    JobRange,
    RunQueue,
)
from postroom.store.runs import Note, gaps

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda s: (s[0], sum(s))))


def note(job: int, attempt: int, kind: str = "lost") -> Note:
    return Note("r", job, attempt, kind, "0", reason="", at=0.0)


def queue(jobs: int, *, mean_s: float | None = None, parcels: tuple[int, ...] = (0,)) -> RunQueue:
    made = RunQueue()
    made.extend(parcels, jobs)
    made.mean_s = mean_s
    return made


@given(st.integers(0, 40), spans)
def test_gaps_are_exactly_what_no_span_covers(end: int, covered: list[tuple[int, int]]) -> None:
    found = {n for first, stop in gaps(end, covered) for n in range(first, stop)}
    assert found == {n for n in range(end) if not any(a <= n < b for a, b in covered)}


@given(st.integers(0, 40), spans)
def test_gaps_are_disjoint_and_in_order(end: int, covered: list[tuple[int, int]]) -> None:
    found = gaps(end, covered)
    assert all(first < stop for first, stop in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


def test_a_job_whose_time_is_unknown_travels_alone() -> None:
    assert queue(10).take() == JobRange(0, 0, 1)


def test_short_jobs_travel_together_as_long_as_a_letter_should_be() -> None:
    span = queue(10_000, mean_s=LETTER_S / 20).take()
    assert span is not None and span.stop - span.first == 20


def test_a_letter_to_another_machine_is_longer_to_hide_its_journey() -> None:
    span = queue(10_000, mean_s=FAR_LETTER_S / 20).take(capacity=Capacity(where="slurm"))
    assert span is not None and span.stop - span.first == 20


def test_large_jobs_travel_together_for_longer_but_not_too_many_bytes() -> None:
    large = queue(10_000, mean_s=LARGE_LETTER_S / 20)
    large.job_bytes = LARGE_LETTER_BYTES // 100
    span = large.take()
    assert span is not None and span.stop - span.first == 20
    large.job_bytes = LARGE_LETTER_BYTES // 5
    span = large.take()
    assert span is not None and span.stop - span.first == 5


def test_no_more_large_jobs_are_written_than_agents_will_soon_need() -> None:
    large = queue(6, mean_s=LARGE_LETTER_S / 2)
    large.grows = True
    assert not large.is_ahead(2), "small jobs cost nothing"
    large.job_bytes = LARGE_LETTER_BYTES // 100
    assert large.is_ahead(2)
    while large.is_ahead(2):
        large.take(agents=2)
    assert large.waiting() == 2


def test_a_letter_to_another_machine_takes_all_large_jobs_and_more_are_written() -> None:
    large = queue(100, mean_s=FAR_LETTER_S / 20)
    large.grows, large.job_bytes = True, LARGE_LETTER_BYTES // 2
    assert large.is_ahead(1)
    span = large.take(capacity=Capacity(where="slurm"))
    assert span is not None and span.stop - span.first == 20
    assert not large.is_ahead(1)


def test_near_the_end_a_letter_to_another_machine_is_worth_its_journey() -> None:
    span = queue(16, mean_s=FAR_LEAST_S / 5).take(capacity=Capacity(where="slurm"), agents=4)
    assert span is not None and span.stop - span.first == 5


def test_a_letter_is_never_longer_than_its_limit() -> None:
    span = queue(100_000, mean_s=0.0).take()
    assert span is not None and span.stop - span.first == MOST_JOBS


def test_near_the_end_every_agent_gets_a_share() -> None:
    span = queue(16, mean_s=LAST_S).take(agents=4)
    assert span is not None and span.stop - span.first == 2


def test_what_takes_only_a_moment_is_shared_out_at_once() -> None:
    taken = queue(16, mean_s=LAST_S / 5)
    found = [taken.take(agents=4) for _ in range(4)]
    assert [span and span.stop - span.first for span in found] == [4, 4, 4, 4]


def test_jobs_that_take_no_time_are_not_shared_out_one_by_one() -> None:
    span = queue(16, mean_s=LEAST_S / 10).take(agents=4)
    assert span is not None and span.stop - span.first == 10


def test_each_job_is_taken_once() -> None:
    taken = queue(100, mean_s=LETTER_S / 7)
    found: list[int] = []
    while (span := taken.take(agents=3)) is not None:
        found += range(span.first, span.stop)
    assert found == list(range(100))
    assert taken.waiting() == 0


def test_a_job_with_a_history_travels_alone_with_its_attempt_number() -> None:
    taken = queue(3, mean_s=0.0)
    taken.note(note(1, 1, "failed"))
    taken.note(note(1, 2, "lost"))
    spans = [taken.take(), taken.take(), taken.take()]
    assert spans == [
        JobRange(0, 0, 1),
        JobRange(0, 1, 2, attempt=3, failed=1, lost=1),
        JobRange(0, 2, 3),
    ]


def test_the_same_note_counts_once() -> None:
    history = queue(1)
    history.note(note(0, 1))
    assert history.note(note(0, 1)).lost == 1


def test_what_is_put_back_waits_again_and_no_more_than_was_asked() -> None:
    taken = queue(2, mean_s=0.0)
    while taken.take() is not None:
        pass
    taken.put_back(1, 5)
    assert taken.waiting() == 1
    assert taken.take() == JobRange(0, 1, 2)


def test_recovery_counts_what_is_covered_and_leaves_what_is_out() -> None:
    recovered = RunQueue()
    recovered.recover([0], 10, sent=[(2, 5)], covered=[(0, 2), (2, 3), (7, 9)])
    assert recovered.done == 4  # (2, 3) is counted when the letter's chain is walked
    assert recovered.waiting() == 3
    assert recovered.take() == JobRange(0, 5, 6)


def test_recovery_never_lets_wait_what_a_parcel_covers_behind_a_letter() -> None:
    recovered = RunQueue()
    recovered.recover([0], 8, sent=[(0, 5)], covered=[(4, 8)])
    assert recovered.waiting() == 0


def test_a_job_before_the_first_known_parcel_is_named_after_itself() -> None:
    taken = RunQueue()
    taken.recover([2], 3, sent=[], covered=[])
    span = taken.take()
    assert span is not None and span.parcel <= span.first


def test_the_mean_follows_what_jobs_take() -> None:
    measured = queue(10)
    measured.covered(2, 2.0)
    assert measured.mean_s == 1.0
    measured.covered(1, 0.0)
    assert measured.mean_s is not None and 0.5 < measured.mean_s < 1.0
    assert measured.done == 3 and not measured.finished


def ranges(waiting: RunQueue) -> list[tuple[int, int]]:
    found = []
    while (taken := waiting.take()) is not None:
        found.append((taken.first, taken.stop))
    return found


def test_withdrawn_jobs_come_back_as_ranges_and_are_not_sent() -> None:
    waiting = queue(8)
    assert waiting.withdraw({1, 2, 3, 6}) == [(1, 4), (6, 7)]
    assert [first for first, _ in ranges(waiting)] == [0, 4, 5, 7]


def test_what_does_not_wait_is_not_withdrawn() -> None:
    waiting = queue(3)
    assert waiting.take() is not None
    assert waiting.withdraw({0, 7}) == []
    assert waiting.waiting() == 2


def test_with_one_job_per_letter_jobs_are_sent_alone_however_short_they_are() -> None:
    for alone in (True, False):
        waiting = RunQueue(one_job_per_letter=alone)
        waiting.extend([0], 100)
        waiting.covered(1, 1e-5)
        taken = waiting.take()
        assert taken is not None
        assert (taken.stop - taken.first == 1) is alone


def test_parcels_that_are_over_are_forgotten_and_those_that_wait_are_named_as_before() -> None:
    jobs = 3 * FORGET_FROM
    made = RunQueue(one_job_per_letter=True)
    for job in range(jobs):
        made.extend([job], job + 1, [100 * job])
    made.take()  # job 0: an agent has it
    before = [made.span(job, job + 1) for job in (0, 1, 5000, jobs - 1)]
    assert made.is_long
    made.forget_parcels([(0, 1)])
    assert [made.span(job, job + 1) for job in (0, 1, 5000, jobs - 1)] == before
    made.covered(1, 0.001)
    assert [made.take() is not None for _ in range(5000)] == [True] * 5000
    # Jobs 1 to 5000 were sent.
    made.forget_parcels([(4000, 4001)])
    assert made.span(4000, 4001).offset == 400_000, "an agent has it, and may give it back"
    made.forget_parcels([])
    assert not made.is_long and made.span(jobs - 1, jobs) == before[-1]
