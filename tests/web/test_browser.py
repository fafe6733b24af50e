"""The page in a real browser, with real sessions and a scheduler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from postroom.commands.spec import CommandSpec
from postroom.queue.submission import submit
from postroom.session.sessions import Sessions
from postroom.store.files import LocalFiles
from postroom.store.scheduling import SchedulingOptions
from postroom.store.snapshot import AgentStatus, snapshot
from postroom.testing import RealSessions, sessions
from postroom.web.access_token import AccessToken

from .conftest import TOKEN, chromium, start_page

pytestmark = pytest.mark.timeout(300)

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = Path(__file__).with_name("axe.min.js")
COUNT = "for i in $(seq 9999); do echo step $i; sleep 0.05; done"
PATIENCE_MS = 60_000
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@dataclass
class Browser:
    """One browser that shows one page."""

    sessions: RealSessions
    chrome: Any
    address: str
    shots: Path | None
    requested: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    @property
    def root(self) -> str:
        return "{0.scheme}://{0.netloc}".format(urlsplit(self.address))

    def open(self, path: str = "/", **options: Any) -> Any:
        """A new window, logged in, at a path of the page."""
        context = self.chrome.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        window = context.new_page()
        window.on("request", lambda request: self.requested.add(request.url))
        window.on("pageerror", lambda error: self.complaints.append(str(error)))
        window.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        window.on(
            "console",
            lambda said: self.complaints.append(said.text) if said.type == "error" else None,
        )
        window.goto(self.address)
        if path != "/":
            window.goto(self.root + path)
        return window

    def get(self, path: str) -> dict[str, Any]:
        """Ask the API."""
        return self._ask("GET", path)

    def post(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Have the API do something."""
        return self._ask("POST", path, json=fields)

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.request(method, self.root + path, headers=headers, timeout=60, **options)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def shoot(self, window: Any, name: str) -> None:
        if self.shots is not None:
            window.screenshot(path=self.shots / f"{name}.png", full_page=True, caret="initial")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = chromium()
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("browser")
    wanted = os.environ.get("POSTROOM_SHOTS")  # a folder, for those who want to look
    shots = Path(wanted) if wanted else None
    with sessions(folder / "base") as started, sync_playwright() as play:
        started.environment |= {"POSTROOM_PRELOAD": ""}
        started.start("0")
        master = subprocess.Popen(
            [sys.executable, "-m", "postroom", "master", started.base.root],
            env=started.environment,
            stderr=subprocess.DEVNULL,
        )
        page, address = start_page(started.base, "--read-only", environment=started.environment)
        chrome = play.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield Browser(started, chrome, address, shots)
        finally:
            chrome.close()
            for process in (page, master):
                process.terminate()
                process.wait(20)
            # The scheduler has started sessions too; do not wait for their jobs.
            Sessions(started.base).stop([agent.agent for agent in living(started)], now=True)


@pytest.fixture(autouse=True)
def _closed_windows(browser: Browser) -> Iterator[None]:
    """No test leaves windows, which go on drawing, or jobs; none sends a request elsewhere."""
    browser.complaints.clear()
    yield
    for context in browser.chrome.contexts:
        context.close()
    left = browser.get("/api/jobs?count=500&state=running,stopping,queued,waiting,paused,held")
    if left["jobs"]:
        ids = [job["id"] for job in left["jobs"]]
        browser.post("/api/requests/jobs", {"verb": "kill", "jobs": ids})
    assert {urlsplit(url).hostname for url in browser.requested} <= {"127.0.0.1"}


def living(started: RealSessions) -> list[AgentStatus]:
    agents = snapshot(started.base, runs=False).agents
    return [agent for agent in agents if agent.state != "dead"]


def badge(window: Any, state: str) -> Any:
    return window.locator("#live > .title > .badge", has_text=re.compile(f"^{state}$"))


def press(window: Any, name: str) -> None:
    window.get_by_role("button", name=name, exact=True).click()


def test_a_day_at_the_page(browser: Browser) -> None:
    window = browser.open("/submit", viewport=DESKTOP)
    assert "token" not in window.url

    # Three jobs, looked at before they are queued.
    window.get_by_label("Commands").fill(f"{COUNT}\nsleep 600\nsleep 600\n")
    window.get_by_label("Name").fill("count")
    window.get_by_label("Project").fill("demo")
    press(window, "Preview")
    window.get_by_role("heading", name="3 jobs would be queued in project demo").wait_for()
    assert os.listdir(browser.sessions.base.job_pool) == []
    browser.shoot(window, "submit")
    press(window, "Submit")
    window.get_by_text("Queued 3 jobs").wait_for()

    # They run, one after another: there is one session.
    row = window.locator("tr", has_text="count-1")
    row.get_by_text("running", exact=True).wait_for()
    window.locator("tr", has_text="count-3").get_by_text("queued", exact=True).wait_for()
    addresses = {
        name: window.get_by_role("link", name=name, exact=True).get_attribute("href")
        for name in ("count-1", "count-2", "count-3")
    }
    browser.shoot(window, "jobs")

    # The log grows while the page is open: nothing is loaded again.
    row.get_by_role("link", name="count-1").click()
    badge(window, "running").wait_for()
    window.evaluate("window.same = true")
    first = window.locator("#out").inner_text().strip().splitlines()
    window.wait_for_function(
        "count => document.querySelector('#out').textContent.trim().split('\\n').length > count",
        arg=len(first) + 10,
    )
    lines = window.locator("#out").inner_text().strip().splitlines()
    assert lines == [f"step {n}" for n in range(1, len(lines) + 1)]
    assert window.evaluate("window.same") is True
    assert window.locator("dd", has_text=re.compile(r"^\d+$")).count() > 0  # PID among them
    browser.shoot(window, "job")

    # The last job gets a priority, so that it is next.
    other = browser.open(addresses["count-3"])
    other.get_by_label("Priority").fill("5")
    press(other, "Set")
    other.get_by_text("set to 5").wait_for()

    # Killing asks first; "Cancel" cancels it.
    press(window, "Kill")
    browser.shoot(window, "sure")
    press(window, "Cancel")
    assert badge(window, "running").is_visible()
    press(window, "Kill")
    press(window, "Kill it")
    badge(window, "cancelled").wait_for()
    badge(other, "running").wait_for()  # by a live update alone
    third = browser.open(addresses["count-2"])
    assert badge(third, "queued").is_visible()

    # Paused, the queue begins nothing; resumed, it goes on.
    window.goto(browser.root)
    press(window, "Pause the queue")
    window.get_by_text("The whole queue is paused").wait_for()
    badge(third, "paused").wait_for()
    press(other, "Kill")
    press(other, "Kill it")
    badge(other, "cancelled").wait_for()
    window.get_by_text("No job is running.").wait_for()
    assert badge(third, "paused").is_visible()
    browser.shoot(window, "paused")
    press(window, "Resume the queue")
    badge(third, "running").wait_for()

    # What was killed is run again, as a new job that points to the old.
    window.goto(browser.root + str(addresses["count-1"]))
    press(window, "Rerun")
    window.get_by_text("queued again").wait_for()
    assert window.url.split("?")[0] != browser.root + str(addresses["count-1"])
    assert window.locator("#to-earlier").get_attribute("href") == addresses["count-1"]
    badge(window, "queued").wait_for()
    press(third, "Kill")
    press(third, "Kill it")
    badge(window, "running").wait_for()

    # Agents are drained and filled again; the project is there, and so is the history.
    window.goto(browser.root + "/agents")
    press(window, "Drain agent 0")
    window.get_by_text("drained", exact=True).wait_for()
    press(window, "Undo drain agent 0")
    window.get_by_role("button", name="Drain agent 0", exact=True).wait_for()
    window.locator("#add-1").click()  # a free GPU
    # There is no job for it: it takes its GPU only when there is one.
    added = window.locator("tr", has_text="GPU 1").get_by_text("resting", exact=True)
    added.wait_for()
    press(window, "Remove agent 1")
    press(window, "Remove it")
    added.wait_for(state="detached")
    window.goto(browser.root + "/history?span=1h")
    assert window.locator(".gantt rect").count() > 0
    assert window.locator("tbody tr").count() == 4
    window.goto(browser.root + "/jobs?text=" + str(addresses["count-2"]).split("-")[-1])
    assert window.url == browser.root + str(addresses["count-2"])
    assert browser.complaints == []


# The page of a job is among them, too.
PAGES = [
    "/",
    "/jobs",
    "/submit",
    "/sweep",
    "/projects",
    "/agents",
    "/history?span=1h",
    "/usage",
    "/nowhere",
]


def faults(window: Any, options: dict[str, Any] | None = None) -> list[str]:
    """All that axe finds."""
    if not window.evaluate("'axe' in window"):
        window.evaluate(AXE.read_text())
    found = window.evaluate("options => axe.run(options)", options or {})
    return [
        f"{window.url}: {fault['id']}: {fault['nodes'][0]['html'][:200]}"
        for fault in found["violations"]
    ]


def test_every_page_is_accessible(browser: Browser) -> None:
    contrast = {"runOnly": ["color-contrast"]}
    unfold = "for (const one of document.querySelectorAll('details')) one.open = true"
    sideways = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    fields = {"commands": ["echo done"], "project": "looked-at"}
    (job,) = browser.post("/api/jobs", fields)["jobs"]
    window = browser.open(f"/jobs/{job}", viewport=DESKTOP, color_scheme="light")
    badge(window, "ok").wait_for()
    of_job = [f"/jobs/{job}", f"/jobs/{job}/attempts/1", f"/submit?again={job}"]
    for path in [*PAGES, *of_job]:
        window.goto(browser.root + path)
        window.evaluate(unfold)
        name = path.split("?")[0].strip("/").replace("/", "-") or "overview"
        name = name.replace(job.replace("/", "-"), "of")
        assert faults(window) == []
        browser.shoot(window, f"light-{name}")
        window.emulate_media(color_scheme="dark")
        assert faults(window, contrast) == []
        browser.shoot(window, f"dark-{name}")
        window.emulate_media(color_scheme="light")
        window.set_viewport_size(PHONE)
        window.get_by_role("button", name="Menu").click()
        assert window.get_by_role("link", name="History").is_visible()
        assert not window.evaluate(sideways), f"{path} scrolls sideways"
        browser.shoot(window, f"phone-{name}")
        window.set_viewport_size(DESKTOP)
    window.context.clear_cookies()
    window.goto(browser.root)
    assert window.get_by_label("Token").is_visible()
    assert faults(window) == []


def test_the_log_opens_at_its_end_is_searched_unwrapped_and_downloaded(browser: Browser) -> None:
    command = "for i in $(seq 9000); do echo line $i; done; echo a needle; echo the last line"
    (job,) = browser.post("/api/jobs", {"commands": [command], "project": "logs"})["jobs"]
    window = browser.open(f"/jobs/{job}", viewport=DESKTOP)
    badge(window, "ok").wait_for()
    window.reload()
    out = window.locator("#out")
    at_end = "box => box.scrollTop + box.clientHeight > box.scrollHeight - 5"
    assert out.evaluate(at_end)
    assert "line 1\n" not in out.inner_text()
    press(window, "Show more")
    window.wait_for_function(
        "() => document.querySelector('#out').textContent.startsWith('line 1')"
    )
    find, found = window.get_by_label("Find in Output"), window.locator("[data-found=out]")
    find.fill("LINE 17")
    assert found.inner_text() == "111 of 111"
    find.press("Enter")
    assert found.inner_text() == "110 of 111"
    find.press("Shift+Enter")
    assert found.inner_text() == "111 of 111"
    find.fill("needles")
    assert found.inner_text() == "not found"
    window.get_by_label("wrap").uncheck()
    assert out.evaluate("box => getComputedStyle(box).whiteSpace") == "pre"
    window.reload()
    assert not window.get_by_label("wrap").is_checked()  # it is remembered
    with window.expect_download() as download:
        window.get_by_role("link", name="Download Output").click()
    assert download.value.path().read_text().splitlines()[-1] == "the last line"
    assert browser.complaints == []


def test_every_other_form_does_what_it_says(browser: Browser) -> None:
    def wait(text: str) -> None:
        window.get_by_text(text).first.wait_for()

    # A sweep, held; one of its jobs is edited, and queued again.
    window = browser.open("/sweep", viewport=DESKTOP)
    window.get_by_label("Command", exact=True).fill("exit {code}")
    window.get_by_label("Values").fill("code=3,4")
    window.get_by_label("Memory per GPU").fill("1G")
    window.get_by_label("Project").fill("forms")
    window.get_by_text("When it starts").click()
    window.get_by_label("Hold until released").check()
    press(window, "Preview")
    window.get_by_role("heading", name="2 jobs would be queued in project forms").wait_for()
    press(window, "Submit")
    wait("Queued 2 jobs")
    window.get_by_role("link", name="exit 3", exact=True).click()
    window.get_by_role("link", name="Edit", exact=True).click()
    assert faults(window) == []
    window.get_by_label("Command", exact=True).fill("echo edited; exit 3")
    press(window, "Save")
    wait("changed.")
    assert window.locator("pre.command").inner_text() == "echo edited; exit 3"
    window.get_by_role("link", name="Edit", exact=True).click()
    window.get_by_label("Command", exact=True).fill("exit 3")
    press(window, "Save")
    wait("changed.")
    window.get_by_role("link", name="Edit and run again").click()
    assert window.get_by_label("Commands").input_value() == "exit 3"
    assert window.get_by_label("Memory per GPU").input_value() == "1G"
    window.get_by_label("Name").fill("edited")
    window.get_by_text("When it starts").click()
    window.get_by_label("Hold until released").check()
    press(window, "Submit")
    wait("rerun of")

    # The list: tabs, an order, and an action on all that match, which stays in view.
    window.goto(browser.root + "/jobs?project=forms")
    window.get_by_role("link", name="Pending 3").click()
    window.get_by_role("link", name="Job", exact=True).click()
    assert window.locator("a.job").all_inner_texts() == ["edited", "exit 3", "exit 4"]
    bar = window.locator("fieldset.chosen")
    assert bar.get_by_role("button", name="Release").is_disabled()
    window.get_by_label("all 3 that match").check()
    assert window.get_by_text("3 jobs selected").is_visible()
    assert faults(window) == []
    press(window, "Kill")
    wait("Kill 3 jobs?")
    press(window, "Cancel")
    press(window, "Release")
    wait("3 jobs released")

    # Two of the three fail with equal errors, which the overview shows together.
    window.goto(browser.root)
    group = window.locator(".failure", has_text="2 jobs").filter(has_text="exit code 3")
    group.wait_for()
    group.get_by_text("Which jobs").click()
    assert group.get_by_role("link", name="edited").is_visible()
    press(window, "Rerun all 2")
    wait("2 jobs queued again")

    # A project is limited, and paused.
    window.goto(browser.root + "/projects")
    window.get_by_label("Jobs of project forms at once").fill("1")
    press(window, "Set the limit of project forms")
    wait("Project forms runs at most 1 job at once")
    assert window.get_by_label("Jobs of project forms at once").input_value() == "1"
    press(window, "Pause project forms")
    wait("Project forms is paused")
    press(window, "Resume project forms")
    wait("Project forms is resumed")

    # An agent without a GPU; the list of GPUs is folded.
    window.goto(browser.root + "/agents")
    window.get_by_text("Several on one GPU").click()
    window.get_by_label("GPUs", exact=True).fill("cpu")
    press(window, "Add")
    press(window, "Remove agent cpu")
    press(window, "Remove it")
    window.get_by_role("button", name="Remove agent cpu").wait_for(state="detached")
    assert browser.complaints == []


def test_the_buttons_of_a_job_of_the_list_of_pilots_and_of_the_login(browser: Browser) -> None:
    def wait(text: str) -> None:
        window.get_by_text(text).first.wait_for()

    # Three jobs that no GPU here can run, by the options of the form that are folded.
    window = browser.open("/submit", viewport=DESKTOP)
    window.get_by_label("Commands").fill("echo $SGE_TASK_ID")
    window.get_by_label("Project").fill("buttons")
    window.get_by_text("Many jobs").click()
    window.get_by_label("Array").fill("1-3%2")
    window.get_by_text("Where it runs, and how").click()
    window.get_by_label("Kind of GPU").fill("H100")
    window.get_by_label("Write stderr to a log of its own").check()
    press(window, "Submit")
    wait("Queued 3 jobs")
    window.locator("a.job").nth(2).click()
    assert window.get_by_text("2", exact=True).count()  # of its array at once
    press(window, "Hold")
    badge(window, "held").wait_for()
    press(window, "Release")
    badge(window, "queued").wait_for()
    press(window, "Move to front")
    wait("moved first")

    window.goto(browser.root + "/jobs?project=buttons")
    window.get_by_label("Select all on this page").check()
    press(window, "Hold")
    wait("3 jobs held")
    window.locator("input[name=job]").first.check()
    press(window, "Rerun")
    wait("queued again")
    window.goto(browser.root + "/jobs?project=buttons")
    window.get_by_label("all 4 that match").check()
    press(window, "Kill")
    press(window, "Yes, kill")
    window.get_by_role("link", name="Cancelled 4").wait_for()

    # A group of pilots that nothing needs.
    root = browser.sessions.base.root
    add = ["pilots", "add", root, "--local", "--gpus-per-pilot", "0", "--name", "near"]
    subprocess.run(
        [sys.executable, "-m", "postroom", *add],
        env=browser.sessions.environment,
        check=True,
        capture_output=True,
    )
    window.goto(browser.root + "/agents")
    press(window, "Drain pilots of near")
    press(window, "Resume pilots of near")
    press(window, "Stop pilots of near")
    press(window, "Stop them")
    press(window, "Resume pilots of near")
    assert faults(window) == []
    press(window, "Remove pilots of near")
    press(window, "Remove it")
    window.get_by_text("near", exact=True).wait_for(state="detached")

    # Without its cookie the page asks for the token, or for the whole address.
    for said in (TOKEN, browser.address):
        window.context.clear_cookies()
        window.goto(browser.root)
        window.get_by_label("Token").fill(said)
        press(window, "Open the page")
        window.get_by_role("heading", name="Overview").wait_for()
    # The form without a cookie is answered with 401, and Chromium says so.
    assert [one for one in browser.complaints if "401" not in one] == []


def test_a_curve_begins_before_its_page(browser: Browser) -> None:
    held: list[Any] = []
    window = browser.open("/jobs", viewport=DESKTOP)
    window.route("**/api/readings", lambda route: held.append(route))
    window.goto(browser.root)
    window.wait_for_function("() => 'uPlot' in window")
    # A live reading comes first.
    drawn = window.evaluate(
        """() => {
            const real = uPlot;
            window.drawn = [];
            uPlot = function (options, data, box) {
                drawn.push(data[0].length);
                return new real(options, data, box);
            };
            const card = document.querySelector("[data-chart]").dataset.chart;
            const detail = { at: Date.now() / 1000, cards: { [card]: [50, 60] } };
            document.body.dispatchEvent(new CustomEvent("postroom:cards", { detail }));
            return card;
        }"""
    )
    now = time.time()
    held[0].fulfill(json=[[now - age, {drawn: [10, 20]}] for age in (90, 60, 30)])
    window.wait_for_function("() => drawn.length > 0")
    assert window.evaluate("drawn[0]") >= 4


def test_on_a_phone_the_menu_and_the_filters_unfold(browser: Browser) -> None:
    window = browser.open("/jobs", viewport=PHONE)
    history, text = window.get_by_role("link", name="History"), window.locator("#text")
    assert not history.is_visible() and not text.is_visible()
    press(window, "Filter and sort")
    text.fill("nothing like that")
    press(window, "Apply")
    window.get_by_text("No job matches").wait_for()
    assert text.is_visible()  # there is a filter, so it is shown
    press(window, "Menu")
    history.click()
    window.get_by_role("heading", name="History").wait_for()
    assert browser.complaints == []


def test_who_may_only_look_gets_pages_without_forms(browser: Browser) -> None:
    read = AccessToken(TOKEN, shared=True).read_secret
    context = browser.chrome.new_context(viewport=DESKTOP)
    window = context.new_page()
    window.goto(f"{browser.root}/?token={read}")
    for path in ("/", "/jobs", "/projects", "/agents", "/history"):
        window.goto(browser.root + path)
        assert window.locator("main button:not(.fold)").count() <= (path == "/jobs")  # its filter
        assert window.get_by_role("link", name="Submit", exact=True).count() == 0
        assert faults(window) == []


def test_the_keyboard_and_the_theme(browser: Browser) -> None:
    window = browser.open("/", color_scheme="light")
    window.keyboard.press("Tab")
    assert window.evaluate("document.activeElement.className") == "skip"
    window.keyboard.press("Enter")
    assert window.evaluate("document.activeElement.id") == "content"
    window.keyboard.press("/")
    assert window.evaluate("document.activeElement.id") == "search"
    ground = "getComputedStyle(document.body).backgroundColor"
    light = window.evaluate(ground)
    press(window, "Theme: system")
    press(window, "Theme: light")
    dark = window.evaluate(ground)
    assert dark != light
    window.reload()
    assert window.evaluate(ground) == dark


def test_a_hidden_page_keeps_no_connection(browser: Browser) -> None:
    window = browser.open("/")
    window.wait_for_function("() => document.documentElement.dataset.live === 'yes'")
    hide = """value => {
        Object.defineProperty(document, "hidden", { value, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    window.evaluate(hide, True)
    window.wait_for_function("() => document.documentElement.dataset.live === 'no'")
    window.evaluate(hide, False)
    window.wait_for_function("() => document.documentElement.dataset.live === 'yes'")


def test_a_list_is_not_refreshed_while_jobs_are_selected(browser: Browser) -> None:
    def add_job(name: str) -> None:
        asks = [CommandSpec("true", name=name, cwd="/", scheduling=SchedulingOptions(held=True))]
        submit(LocalFiles(), browser.sessions.base, asks, project="still")

    add_job("first")
    window = browser.open("/jobs?project=still")
    window.wait_for_function("() => document.documentElement.dataset.live === 'yes'")
    add_job("second")
    window.get_by_role("link", name="second", exact=True).wait_for()  # by a live update alone
    window.evaluate(
        "() => document.body.addEventListener('htmx:beforeRequest', (e) => "
        "{ window.held = e.defaultPrevented; })"
    )
    box = window.locator("input[name=job]").first
    box.check()
    add_job("third")
    window.wait_for_function("() => window.held === true")
    assert box.is_checked()
    assert window.get_by_role("link", name="third", exact=True).count() == 0
    box.uncheck()
    window.get_by_role("link", name="third", exact=True).wait_for()


def test_after_a_bulk_action_the_list_is_as_it_was(browser: Browser) -> None:
    held = SchedulingOptions(held=True)
    asks = [CommandSpec(f"echo {number}", cwd="/", scheduling=held) for number in range(70)]
    submit(LocalFiles(), browser.sessions.base, asks, project="bulk")
    filtered = "/jobs?project=bulk&first=20"
    window = browser.open(filtered, viewport=DESKTOP, color_scheme="light")
    boxes = window.locator("input[name=job]")
    boxes.nth(20).check()
    window.get_by_label("Priority").fill("7")
    before = window.evaluate("scrollY")
    assert before > 0
    press(window, "Set")
    window.get_by_text("set to 7").wait_for()
    assert window.url.startswith(browser.root + filtered)
    assert boxes.count() == 50
    window.wait_for_function("y => Math.abs(scrollY - y) < 100", arg=before)
    sees = "() => { const at = document.querySelector('.note.answer').getBoundingClientRect();"
    assert window.evaluate(sees + " return at.top >= 0 && at.bottom <= innerHeight; }")
    assert faults(window) == []
    browser.shoot(window, "bulk")


def test_an_open_page_says_that_the_base_cannot_be_read(browser: Browser) -> None:
    text = "The base cannot be read: a disk is gone"

    def answer(route: Any) -> None:
        events = f'event: trouble\ndata: {{"text": "{text}"}}\n\n'
        route.fulfill(body=events, content_type="text/event-stream")

    window = browser.open("/", viewport=DESKTOP, color_scheme="light")
    window.route("**/events*", answer)
    window.goto(browser.root + "/jobs")
    window.get_by_text("a disk is gone").wait_for()
    for scheme in ("light", "dark"):
        window.emulate_media(color_scheme=scheme)
        assert faults(window, {"runOnly": ["color-contrast"]}) == []
        browser.shoot(window, f"trouble-{scheme}")
    text = ""
    window.get_by_text("a disk is gone").wait_for(state="hidden")


def test_a_page_cannot_send_a_request_to_another_host(browser: Browser) -> None:
    window = browser.open("/")
    blocked = window.evaluate(
        """() => new Promise((tell) => {
            document.addEventListener("securitypolicyviolation", (event) => tell(event.blockedURI));
            fetch("http://192.0.2.1/").catch(() => {});
        })"""
    )
    assert blocked == "http://192.0.2.1/"
