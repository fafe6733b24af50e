"""The picture of the accounts: it shows what the report says."""

from __future__ import annotations

import httpx

from postroom.gpus.ledger.activity import HOUR_S
from postroom.gpus.ledger.ended_leases import EndedLease
from postroom.gpus.ledger.usage_report import LedgerPast
from postroom.web.format import WIDTH
from postroom.web.usage_chart import CHART_HEIGHT, usage_chart

from .conftest import Page

NOW = 1000 * 86400.0


def lease(name: str, uuid: str, hours_ago: float, hours: float) -> EndedLease:
    begun = NOW - hours_ago * HOUR_S
    return EndedLease(name, 0, name, (uuid,), 1.0, begun, begun, begun + hours * HOUR_S)


def test_rows_and_columns_add_up_to_what_was_held() -> None:
    past = LedgerPast([lease("a", "X", 30, 20), lease("b", "Y", 5, 5)], [], {}, {}, NOW)
    chart = usage_chart(past, 7 * 86400, 28, "card", lambda uuid: f"GPU {uuid}")
    assert [row.name for row in chart.rows] == ["GPU X", "GPU Y"]
    assert chart.held_s == chart.unknown_s == 25 * HOUR_S
    assert chart.rows[0].parts[0].size == WIDTH
    assert round(chart.rows[1].parts[0].size) == round(WIDTH / 4)
    drawn = sum(part.size for column in chart.columns for part in column.parts)
    assert round(drawn * chart.most_hours / CHART_HEIGHT, 6) == 25.0
    assert (
        max(part.at + part.size for c in chart.columns for part in c.parts) <= CHART_HEIGHT + 1e-6
    )


def test_the_page_of_an_empty_ledger_says_so(page: Page, browser: httpx.Client) -> None:
    for by in ("user", "project", "card", "moon"):
        shown = browser.get(f"/usage?by={by}&span=30d")
        assert shown.status_code == 200
    assert browser.get("/api/usage?by=card").status_code == 200
    assert browser.get("/api/usage?by=moon").status_code == 422
