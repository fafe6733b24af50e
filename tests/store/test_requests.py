"""Requests keep the order in which they were made."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.store.requests import Request, RequestVerb, ask, pending, read_request


def test_requests_keep_their_order_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, files = create_base(tmp_path / "base"), LocalFiles()
    job = JobId("20261116-030703-0b859f", 3)
    hours = iter([20, 19, 21, 18])
    monkeypatch.setattr("time.time_ns", lambda: next(hours) * 3_600_000_000_000)
    verbs = [RequestVerb.HOLD, RequestVerb.RELEASE, RequestVerb.HOLD, RequestVerb.RELEASE]
    names = [ask(files, base, Request(verb, jobs=(job,))) for verb in verbs]
    assert pending(files, base) == names
    assert [read_request(files, base, name).verb for name in names] == verbs
