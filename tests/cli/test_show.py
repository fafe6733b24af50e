"""`postroom show`: everything about one job."""

from __future__ import annotations

from postroom.store.base import Base
from tests.queue.kit import FAILURE, end, queue

from .kit import call


def test_show_tells_why_a_job_waits_and_why_it_failed(base: Base) -> None:
    first, second = queue(base, "a", "b")
    (third,) = queue(base, "c", after=(first,))
    assert "no scheduler is running" in call(base, "show", second.short).stdout
    assert f"it waits for {first.short} (queued)" in call(base, "show", third.short).stdout
    end(base, first, FAILURE)
    shown = call(base, "show", first.short).stdout
    error, title, traceback = shown.splitlines()[:3]
    assert error == f"{first.short} failed: exit code 3: no such data"
    assert (title, traceback) == ("its last output:", "  Traceback: ...")
    assert call(base, "show").stdout == call(base, "show", third.short).stdout
    assert "will be cancelled" in call(base, "show", third.short).stdout
