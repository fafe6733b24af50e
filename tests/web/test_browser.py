"""The page in a real browser, with real sessions and a scheduler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from postroom.commands.spec import CommandSpec
from postroom.queue.submission import submit
from postroom.session.sessions import Sessions
from postroom.store.files import LocalFiles
from postroom.store.scheduling import SchedulingOptions
from postroom.store.snapshot import AgentStatus, snapshot
from postroom.testing import RealSessions, sessions

from .conftest import chromium, start_page

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
        page, address = start_page(started.base, environment=started.environment)
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
    """A window that stays open goes on drawing what is new. No test sends a request elsewhere."""
    browser.complaints.clear()
    yield
    for context in browser.chrome.contexts:
        context.close()
    assert {urlsplit(url).hostname for url in browser.requested} == {"127.0.0.1"}


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
    window.get_by_label("GPUs", exact=True).fill("1")
    press(window, "Add")
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


PAGES = ["/", "/jobs", "/submit", "/sweep", "/projects", "/agents", "/history?span=1h", "/nowhere"]


def serious(window: Any, options: dict[str, Any] | None = None) -> list[str]:
    """What keeps people out; trifles are left out."""
    if not window.evaluate("'axe' in window"):
        window.evaluate(AXE.read_text())
    found = window.evaluate("options => axe.run(options)", options or {})
    return [
        f"{window.url}: {fault['id']}: {fault['nodes'][0]['html'][:200]}"
        for fault in found["violations"]
        if fault["impact"] in ("moderate", "serious", "critical")
    ]


def test_every_page_is_accessible(browser: Browser) -> None:
    contrast = {"runOnly": ["color-contrast"]}
    sideways = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    window = browser.open("/", viewport=DESKTOP, color_scheme="light")
    job = window.locator("a.job").first
    for path in PAGES + ([str(job.get_attribute("href"))] if job.count() else []):
        window.goto(browser.root + path)
        name = path.split("?")[0].strip("/").replace("/", "-") or "overview"
        name = "job" if name.startswith("jobs-") else name
        assert serious(window) == []
        browser.shoot(window, f"light-{name}")
        window.emulate_media(color_scheme="dark")
        if name in ("overview", "jobs", "job", "submit"):
            assert serious(window, contrast) == []
        browser.shoot(window, f"dark-{name}")
        window.emulate_media(color_scheme="light")
        window.set_viewport_size(PHONE)
        assert not window.evaluate(sideways), f"{path} scrolls sideways"
        browser.shoot(window, f"phone-{name}")
        window.set_viewport_size(DESKTOP)
    window.context.clear_cookies()
    window.goto(browser.root)
    assert window.get_by_label("Token").is_visible()
    assert serious(window) == []


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
    assert serious(window) == []
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
        assert serious(window, {"runOnly": ["color-contrast"]}) == []
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
