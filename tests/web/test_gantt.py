"""The history as a chart, and the timeline of a job."""

from __future__ import annotations

from postroom.queue.rows import AttemptView, Interval, JobDetail, JobView
from postroom.web.format import WIDTH
from postroom.web.gantt import chart, timeline


def interval(start: float, end: float | None, gpu: str = "a", outcome: str = "ok") -> Interval:
    return Interval("r/0", "r/0", "name", "p", "0", gpu, 1, start, end, outcome)


def test_the_chart_shows_what_ran_in_its_time() -> None:
    found = [
        interval(-50, 10),
        interval(20, 30),
        interval(40, 45, outcome="failed"),
        interval(90, None, gpu="b"),
    ]
    drawn = chart(found, 0, 100, lambda gpu: f"GPU {gpu}")
    assert [row.label for row in drawn.rows] == ["agent 0 · GPU a", "agent 0 · GPU b"]
    bars = [(round(bar.x), round(bar.width), bar.kind) for bar in drawn.rows[0].bars]
    assert bars == [(0, 100, "state-ok"), (200, 100, "state-ok"), (400, 50, "state-failed")]
    assert round(drawn.rows[0].busy) == 25
    last = drawn.rows[1].bars[0]
    assert last.x + last.width == WIDTH  # it still runs


def test_a_day_of_small_jobs_can_be_drawn() -> None:
    found = [interval(n * 0.01, n * 0.01 + 0.009) for n in range(50_000)]
    drawn = chart(found, 0, 500, str)
    assert len(drawn.rows[0].bars) < 1000
    assert drawn.left_out == 0
    assert 85 < drawn.rows[0].busy < 95


def test_the_timeline_of_a_job_shows_waiting_and_every_attempt() -> None:
    job = JobView(
        "r/0", "r/0", "r", 0, "", "p", "u", "true", "ok", submitted_at=100.0, ended_at=200.0
    )
    attempts = [
        AttemptView(1, "failed", started_at=120.0, ended_at=140.0),
        AttemptView(2, "ok", started_at=150.0, ended_at=200.0),
    ]
    bars = timeline(JobDetail(job, attempts=attempts))
    assert [(round(bar.x), round(bar.width), bar.kind) for bar in bars] == [
        (0, 200, "waits"),
        (200, 200, "state-failed"),
        (400, 100, "waits"),
        (500, 500, "state-ok"),
    ]
