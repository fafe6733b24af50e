"""`postroom jobs`: lists, filters and pages."""

from __future__ import annotations

import json

from postroom.store.base import Base
from postroom.store.job_ids import JobId
from tests.queue.kit import FAILURE, end, queue

from .kit import call


def test_jobs_are_listed_filtered_and_paged(base: Base) -> None:
    first, *_ = queue(base, *[f"job{n}" for n in range(5)])
    end(base, first, FAILURE)
    shown = call(base, "jobs", "-n", "2")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == [
        JobId(first.run, n).short for n in (1, 2)
    ]
    assert "1 to 2 of 5; for more: --first 2" in shown.stderr
    assert "exit code 3" in call(base, "jobs", "-s", "failed").stdout
    assert "exit code 3" in call(base, "jobs", "-s", "unsuccessful").stdout
    pages = json.loads(call(base, "jobs", "-s", "pending", "--json").stdout)
    assert (pages["total"], pages["more"]) == (4, False)
    assert "job4" in call(base, "jobs", "JOB4").stdout
    assert call(base, "jobs", "nothing").stdout == ""
