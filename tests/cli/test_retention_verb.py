from __future__ import annotations

import json
from pathlib import Path

import pytest

from postroom.cli import retention
from postroom.store.base import Base
from postroom.store.files import LocalFiles
from postroom.store.retention import Retention, retention_of
from tests.cli.kit import call


def test_retention_is_shown_and_set(base: Base) -> None:
    assert "arguments" in call(base, "retention").stdout
    call(base, "retention", "--results", "30d")
    call(base, "retention", "--size", "20G")
    assert retention_of(LocalFiles(), base) == Retention(30 * 86_400.0, 20 << 30)
    shown = json.loads(call(base, "retention", "--json").stdout)
    assert shown["results_bytes"] == 20 << 30 and "results" in shown["bytes"]
    call(base, "retention", "--default")
    assert retention_of(LocalFiles(), base).results_bytes == 5 << 30


def test_sizes_are_those_of_now_or_it_is_said_when_they_were_measured(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = json.loads(call(base, "retention", "--json").stdout)["bytes"]["trash"]
    Path(base.tmp, "some").write_bytes(b"x" * 5000)
    assert json.loads(call(base, "retention", "--json").stdout)["bytes"]["trash"] > before
    monkeypatch.setattr(retention, "LOOK_S", -1.0)  # as on a base that takes too long
    assert "too large to be measured" in call(base, "retention").output
