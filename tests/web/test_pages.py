"""The pages: lists, search, and one job."""

from __future__ import annotations

import html
import re
from pathlib import Path

import httpx

from postroom.commands.spec import CommandSpec
from postroom.queue.rows import Interval
from postroom.queue.submission import submit
from postroom.store.files import LocalFiles
from postroom.store.pilot_records import PilotRecord, PilotState, write_pilot
from postroom.store.requests import Orders, write_orders
from postroom.store.scheduling import SchedulingOptions
from postroom.testing import wait_until
from postroom.web.pages import telling_span

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


def test_the_overview_begins_with_what_paused_itself(page: Page, browser: httpx.Client) -> None:
    files, why = LocalFiles(), "5 jobs in a row failed at once with <no train.py>"
    submit(files, page.base, [CommandSpec("true", cwd="/")], project="typo")
    orders = Orders(paused_all=True, paused_projects={"typo"}, paused_why={"typo": why, "": why})
    write_orders(files, page.base, orders)
    try:
        shown = browser.get("/").text
    finally:
        write_orders(files, page.base, Orders())
    escaped = html.escape(why)
    assert f"The queue paused itself: {escaped}. Repair that, then resume the queue." in shown
    assert f"paused itself: {escaped}. Repair that, then resume it." in shown
    form = shown.split("then resume it.")[1].split("</form>")[0]
    assert 'name="verb" value="resume"' in form and 'name="project" value="typo"' in form
    wait_until(lambda: "paused itself" not in browser.get("/").text)


def test_a_list_is_sorted_and_its_tabs_count_its_project(page: Page, browser: httpx.Client) -> None:
    asks = [
        CommandSpec("true", name=f"job-{n}", cwd="/", scheduling=SchedulingOptions(priority=n % 3))
        for n in range(1, 12)
    ]
    submit(LocalFiles(), page.base, asks, project="sorted")

    def names(sort: str) -> list[str]:
        shown = browser.get(f"/jobs?project=sorted&sort={sort}").text
        return re.findall(r">(job-\d+)</a>", shown)

    assert names("name") == [f"job-{n}" for n in range(1, 12)]
    assert names("-name") == names("name")[::-1]
    assert names("-priority")[0] == "job-2" and names("priority")[0] == "job-3"
    assert set(names("duration")) == set(names("name"))  # none has one
    assert browser.get("/jobs?sort=beauty").status_code == 400
    shown = re.sub(r"<[^>]*>", "", browser.get("/jobs?project=sorted").text)
    assert "All 11" in shown and "Pending 11" in shown and "Failed 0" in shown


def test_a_log_is_downloaded_whole_and_only_from_inside_the_base(
    page: Page, browser: httpx.Client
) -> None:
    answer = browser.get(f"/jobs/{page.jobs[0]}/log/out")
    assert answer.content == Path(page.base.job_folder(page.jobs[0].run, 0), "0.OUT").read_bytes()
    assert answer.headers["content-type"].startswith("text/plain")
    short = page.jobs[0].short.replace("/", "-")
    assert answer.headers["content-disposition"] == f'attachment; filename="{short}.out.txt"'
    assert browser.get(f"/jobs/{page.jobs[1]}/log/out").status_code == 400
    assert browser.get(f"/jobs/{page.jobs[0]}/log/passwd").status_code == 422


def test_history_opens_on_the_shortest_span_that_has_something_in_it() -> None:
    def ran(hours_ago: float) -> Interval:
        at = 1e9 - hours_ago * 3600
        return Interval("r/0", "r/0", "", "p", "0", "", 1, at - 60, at, "ok")

    assert telling_span([], 1e9) == "1d"
    assert telling_span([ran(0.5)], 1e9) == "1h"
    assert telling_span([ran(100)], 1e9) == "7d"
    assert telling_span([ran(0.5)] + [ran(4)] * 10, 1e9) == "6h"


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
    assert ">Output</h3>" in shown
    assert shown.index('id="logs"') < shown.index('id="details"')  # the log comes first
    assert "Scheduler stopped" in browser.get("/").text


def test_the_agents_page_shows_pilots_with_their_node_and_why_they_wait(
    page: Page, browser: httpx.Client
) -> None:
    files = LocalFiles()
    record = PilotRecord(
        "p-7", "p", "slurm", PilotState.SUBMITTED, "x", 1.0, why="<b>Priority</b>", node="node-17"
    )
    write_pilot(files, page.base, record)
    Path(page.base.pilot_log("p-7")).write_text("srun: job 17 queued\n")
    try:
        shown = browser.get("/agents").text
        own = browser.get("/pilots/p-7").text
    finally:
        files.remove(page.base.pilot_record("p-7"))
    assert "node-17" in shown and 'href="/pilots/p-7"' in shown
    assert "&lt;b&gt;Priority" in shown
    assert "srun: job 17 queued" in own and "&lt;b&gt;Priority" in own
    assert browser.get("/pilots/p-7/log").text == "srun: job 17 queued\n"
    assert browser.get("/pilots/p-8").status_code == 400
