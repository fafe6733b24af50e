"""The application: errors are sentences, on a page or as JSON."""

from __future__ import annotations

import httpx
import pytest

from .conftest import Page


def test_what_is_not_there_is_a_sentence(page: Page, browser: httpx.Client) -> None:
    for path in ("/nowhere", f"/jobs/{page.jobs[0].run}/99999", f"/jobs/{page.jobs[0]}/attempts/9"):
        answer = browser.get(path)
        assert answer.status_code in (400, 404)
        assert "<h1>Error</h1>" in answer.text
    assert "there is no state" in browser.get("/jobs?state=happy").text.lower()


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/nowhere", 404), ("/static/none.css", 404), ("/api/jobs?count=0", 422)],
)
def test_the_api_answers_errors_as_json(
    page: Page, browser: httpx.Client, path: str, status: int
) -> None:
    answer = browser.get(path)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_an_asset_can_be_cached_since_its_address_changes_with_it(
    page: Page, browser: httpx.Client
) -> None:
    assert "max-age" in browser.get("/static/page.css").headers["cache-control"]
