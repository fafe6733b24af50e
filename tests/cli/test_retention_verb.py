from __future__ import annotations

import json

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
