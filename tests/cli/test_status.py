"""`postroom status`: the queue on one page."""

from __future__ import annotations

import json

from postroom.store.base import Base
from postroom.store.requests import Orders, write_orders
from tests.queue.kit import FILES, queue

from .kit import call


def test_status_says_first_what_is_wrong(base: Base) -> None:
    queue(base, "a")
    shown = call(base, "status").stdout
    assert "NO SCHEDULER RUNNING" in shown and f"postroom up {base.root}" in shown
    assert json.loads(call(base, "status", "--json").stdout)["counts"] == {"queued": 1}
    why = "5 jobs in a row failed at once with 'no train.py'"
    orders = Orders(paused_projects={"vae"}, paused_why={"vae": why, "": why})
    write_orders(FILES, base, orders)
    shown = call(base, "status").stdout
    assert f"the queue paused itself: {why}; repair that, then: postroom resume\n" in shown
    queue(base, "b", project="vae")
    assert f"project vae paused itself: {why}; " in call(base, "status").stdout
