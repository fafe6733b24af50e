"""Live news, the chart of the history, the trace and the metrics."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from postroom.commands.spec import CommandSpec
from postroom.queue.rows import Interval
from postroom.queue.submission import submit
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.web import live_updates as streams
from postroom.web.chrome_trace import trace
from postroom.web.gantt import WIDTH, chart
from postroom.web.live_updates import MOST_BEHIND, Listener, LiveUpdates
from postroom.web.metrics import metrics
from postroom.web.queue_reader import QueueReader


async def next_event(heard: object) -> tuple[str, dict[str, object]]:
    async with asyncio.timeout(30):
        while True:
            lines = (await anext(heard)).decode().splitlines()  # type: ignore[call-overload]
            if lines and lines[0].startswith("event: "):
                return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "POLL_S", 0.02)


def test_news_come_while_somebody_listens_and_no_look_is_taken_after(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")

    async def listen() -> None:
        reader = QueueReader(base)
        stream = LiveUpdates(reader)
        heard = stream.listen(Listener())
        other = stream.listen(Listener())
        assert (await next_event(heard))[0] == "cards"
        assert (await next_event(heard))[0] == "change"  # from nothing to what there is
        assert (await next_event(other))[0] in ("cards", "change")
        poller = stream._poller
        assert poller is not None
        submit(LocalFiles(), base, [CommandSpec("true", cwd="/")])
        while (event := await next_event(heard))[0] != "change":
            assert event[0] == "cards"
        await heard.aclose()  # type: ignore[attr-defined]
        assert stream._poller is poller  # one still listens
        await other.aclose()  # type: ignore[attr-defined]
        assert stream._poller is None
        await asyncio.wait([poller])
        assert poller.cancelled()
        reader.close()

    asyncio.run(listen())


def test_the_log_of_a_job_comes_as_it_grows(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    (job,) = submit(LocalFiles(), base, [CommandSpec("true", cwd="/")])
    folder = Path(base.job_folder(job.run, job.number))
    folder.mkdir(parents=True)
    log = folder / f"{job.number}.OUT"
    log.write_text("one\n")

    async def listen() -> list[str]:
        reader = QueueReader(base)
        heard = LiveUpdates(reader).listen(Listener(job=job))
        found = []
        while len(found) < 2:
            event, data = await next_event(heard)
            if event == "log":
                found.append(str(data["text"]))
                with log.open("a") as file:
                    file.write("two\x1b[0m\n")
        await heard.aclose()  # type: ignore[attr-defined]
        reader.close()
        return found

    assert asyncio.run(listen()) == ["one\n", "two\n"]


def test_who_is_too_far_behind_hears_the_end() -> None:
    async def fall_behind() -> list[bytes | None]:
        listener = Listener()
        for number in range(MOST_BEHIND + 1):
            listener.tell("change", number)
        return [listener.queue.get_nowait() for _ in range(MOST_BEHIND)]

    assert asyncio.run(fall_behind())[-1] is None


def interval(start: float, end: float | None, gpu: str = "a", outcome: str = "ok") -> Interval:
    return Interval("r/0", "r/0", "name", "p", "0", gpu, 1, start, end, outcome)


def test_the_chart_shows_what_lies_in_its_time() -> None:
    found = [
        interval(-50, 10),
        interval(20, 30),
        interval(40, 45, outcome="failed"),
        interval(90, None, gpu="b"),
    ]
    drawn = chart(found, 0, 100, lambda gpu: f"GPU {gpu}")
    assert [row.label for row in drawn.rows] == ["GPU a · agent 0", "GPU b · agent 0"]
    bars = [(round(bar.x), round(bar.width), bar.kind) for bar in drawn.rows[0].bars]
    assert bars == [(0, 100, "state-ok"), (200, 100, "state-ok"), (400, 50, "state-failed")]
    assert round(drawn.rows[0].busy) == 25
    last = drawn.rows[1].bars[0]
    assert last.x + last.width == WIDTH  # it still runs


def test_a_day_of_small_jobs_is_still_a_picture() -> None:
    found = [interval(n * 0.01, n * 0.01 + 0.009) for n in range(50_000)]
    drawn = chart(found, 0, 500, str)
    assert len(drawn.rows[0].bars) < 1000
    assert drawn.left_out == 0
    assert 85 < drawn.rows[0].busy < 95


def test_the_trace_is_what_a_browser_reads() -> None:
    now = time.time()
    made = trace([interval(now - 10, now - 5), interval(now - 3, None, gpu="b")])
    slices = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert slices[0]["dur"] == 5_000_000
    assert slices[0]["pid"] != slices[1]["pid"]
    assert 3_000_000 <= slices[1]["dur"] < 60_000_000
    names = {event["args"]["name"] for event in made["traceEvents"] if event["ph"] == "M"}
    assert names == {"a", "b", "agent 0"}
    json.dumps(made)


def test_the_metrics_are_what_prometheus_reads(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    submit(LocalFiles(), base, [CommandSpec("true", cwd="/")] * 3, project='quo"te\\')
    reader = QueueReader(base)
    text = metrics(asyncio.run(reader.overview()), 2).decode()
    reader.close()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["postroom_jobs", "queued"] == 3
    assert found["postroom_master_up",] == 0
    assert found["postroom_page_listeners",] == 2
    assert found["postroom_project_jobs", "queued", 'quo"te\\'] == 3
    assert found["postroom_card_memory_total_bytes", "0", "FAKE-0", "Simulated"] == 24 << 30
