"""Notifications of a batch: the first failure, and the end, each once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from postroom.batch.batch_notices import BatchNotices
from postroom.errors import PostroomError
from postroom.parcel.sheets import Failure, Outcome
from postroom.store.base import create_base
from tests.queue.kit import FAILURE, end, queue

from .test_batch_view import ended


class Silent:
    """A view that counts what it is shown."""

    shown = 0

    def finished(self, *_: object) -> None:
        self.shown += 1

    def update(self, *_: object) -> None: ...


def test_the_first_failure_and_the_end_are_sent_once_each(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    jobs = queue(base, "a", "b")
    sent, view = tmp_path / "sent", Silent()
    others = tmp_path / "others"
    notices = BatchNotices([f"echo told >> {sent}", f"echo told >> {others}"], base, view)
    batch: Any = SimpleNamespace(pool=SimpleNamespace(run=jobs[0].run), outstanding=1)
    for number, job in enumerate(jobs):
        end(base, job, FAILURE)
        notices.finished(*ended(tmp_path, number, Failure(Outcome.FAILED, "failed", "x")))
        notices.update(batch)
    assert view.shown == 2
    notices.tell_end()
    assert sent.read_text() == others.read_text() == "told\n" * 2


def test_a_target_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(PostroomError):
        BatchNotices(["ftp://example.org"], create_base(tmp_path / "base"), Silent())
