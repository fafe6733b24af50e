"""The history: which job ran on which GPU, and when."""

from __future__ import annotations

import time

from postroom.queue.queue_view import QueueView
from postroom.queue.rows import summary_of
from postroom.store.base import Base
from tests.queue.kit import FAILURE, end, queue


def test_ended_jobs_are_intervals_newest_first(base: Base, view: QueueView) -> None:
    first, second, _ = queue(base, "a", "b", "never started", project="vae")
    now = time.time()
    end(base, first, at=now - 50)
    end(base, second, FAILURE, at=now - 20)
    found = view.history(since=now - 100, until=now)
    assert [(one.name, one.outcome, one.agent, one.project) for one in found] == [
        ("b", "failed", "0", "vae"),
        ("a", "ok", "0", "vae"),
    ]
    assert all(one.ended_at is not None and one.ended_at - one.started_at == 1.5 for one in found)
    assert [one.name for one in view.history(since=now - 30, until=now)] == ["b"]
    assert view.history(since=now + 100, until=now + 200) == []


def test_an_unnamed_script_is_named_by_the_first_line_that_does_something() -> None:
    assert summary_of("#!/bin/bash\n#SBATCH -t 1\n\ncd src\npython t.py") == "cd src …"
    assert summary_of("python t.py # once") == "python t.py # once"
    assert summary_of("# nothing") == "# nothing"
    assert summary_of("") == ""
