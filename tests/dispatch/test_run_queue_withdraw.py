"""Jobs that are withdrawn wait no more, and the others do."""

from __future__ import annotations

from postroom.dispatch.run_queue import RunQueue


def queue(asked: int, *, apart: bool = False) -> RunQueue:
    waiting = RunQueue(apart=apart)
    waiting.extend([0], asked)
    return waiting


def spans(waiting: RunQueue) -> list[tuple[int, int]]:
    found = []
    while (span := waiting.take()) is not None:
        found.append((span.first, span.stop))
    return found


def test_withdrawn_jobs_come_back_as_ranges_and_are_not_sent() -> None:
    waiting = queue(8)
    assert waiting.withdraw({1, 2, 3, 6}) == [(1, 4), (6, 7)]
    assert [first for first, _ in spans(waiting)] == [0, 4, 5, 7]


def test_what_does_not_wait_is_not_withdrawn() -> None:
    waiting = queue(3)
    assert waiting.take() is not None
    assert waiting.withdraw({0, 7}) == []
    assert waiting.waiting() == 2


def test_jobs_apart_travel_alone_however_short_they_are() -> None:
    for apart in (True, False):
        waiting = queue(100, apart=apart)
        waiting.covered(1, 1e-5)
        span = waiting.take()
        assert span is not None
        assert (span.stop - span.first == 1) is apart
