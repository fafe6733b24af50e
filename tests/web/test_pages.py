"""The pages: lists, search, and one job."""

from __future__ import annotations

import httpx

from postroom.commands.spec import CommandSpec
from postroom.queue.submission import submit
from postroom.store.files import LocalFiles
from postroom.store.pilot_records import PilotRecord, PilotState, write_pilot

from .conftest import Page


def test_pages_of_jobs_lead_on_and_back(page: Page, browser: httpx.Client) -> None:
    submit(LocalFiles(), page.base, [CommandSpec("true", cwd="/")] * 120, project="many")
    first = browser.get("/jobs?project=many").text
    assert "1 to 50 of 120" in first.replace("\u202f", "")
    assert 'rel="prev"' not in first
    last = browser.get("/jobs?project=many&first=100").text
    assert "101 to 120 of 120" in last
    assert 'rel="next"' not in last
    assert "There are no more jobs" in browser.get("/jobs?project=many&first=500").text
    assert "No job matches" in browser.get("/jobs?text=nothing-like-that").text


def test_a_search_for_an_id_leads_to_the_job(page: Page, browser: httpx.Client) -> None:
    found = browser.get("/jobs", params={"text": page.jobs[1].short})
    assert (found.status_code, found.headers["location"]) == (303, f"/jobs/{page.jobs[1]}")


def test_the_short_id_that_everything_prints_is_an_address(
    page: Page, browser: httpx.Client
) -> None:
    run, short = page.jobs[1].run, page.jobs[1].short
    assert f'data-job="{run}"' in browser.get(f"/jobs/{short}").text
    assert browser.get(f"/api/jobs/{short}").json()["job"]["id"] == str(page.jobs[1])
    assert browser.get(f"/jobs/{run[-6:]}").headers["location"] == f"/jobs?run={run[-6:]}"
    unknown = browser.get("/jobs/nowhere/1")
    assert unknown.status_code == 404
    assert "There is no job nowhere/1" in unknown.text
    beyond = browser.get(f"/jobs/{run[-6:]}/99999")
    assert beyond.status_code == 404


def test_every_page_names_its_actions_in_the_words_of_the_table(
    page: Page, browser: httpx.Client
) -> None:
    shown = browser.get(f"/jobs/{page.jobs[0]}").text
    for label in ("Kill", "Hold", "Move to front", "Rerun"):
        assert f">{label}</button>" in shown
    assert ">stdout and stderr</h3>" in shown
    assert "Scheduler stopped" in browser.get("/").text


def test_the_agents_page_shows_pilots_with_their_node_and_why_they_wait(
    page: Page, browser: httpx.Client
) -> None:
    files = LocalFiles()
    record = PilotRecord(
        "p-7", "p", "slurm", PilotState.SUBMITTED, "x", 1.0, why="<b>Priority</b>", node="node-17"
    )
    write_pilot(files, page.base, record)
    try:
        shown = browser.get("/agents").text
    finally:
        files.remove(page.base.pilot_record("p-7"))
    assert "node-17" in shown
    assert "&lt;b&gt;Priority" in shown
