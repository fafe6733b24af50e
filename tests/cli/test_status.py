"""`postroom status`: the queue on one page."""

from __future__ import annotations

import json

from postroom.store.base import Base
from tests.queue.kit import queue

from .kit import call


def test_status_says_first_what_is_wrong(base: Base) -> None:
    queue(base, "a")
    shown = call(base, "status").stdout
    assert "NO SCHEDULER RUNNING" in shown and f"postroom up {base.root}" in shown
    assert json.loads(call(base, "status", "--json").stdout)["counts"] == {"queued": 1}
