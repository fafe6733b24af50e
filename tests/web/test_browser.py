"""The page in a real browser, before real sessions and a standing Master."""

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
class Desk:
    """One browser before one page."""

    room: RealSessions
    browser: Any
    address: str
    shots: Path | None
    requested: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    @property
    def root(self) -> str:
        return "{0.scheme}://{0.netloc}".format(urlsplit(self.address))

    def open(self, path: str = "/", **options: Any) -> Any:
        """A new window, logged in, at a path of the page."""
        context = self.browser.new_context(**options)
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
def inbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    executable = chromium()
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("browser")
    wanted = os.environ.get("POSTROOM_SHOTS")  # a folder, for those who want to look
    shots = Path(wanted) if wanted else None
    with sessions(folder / "base") as room, sync_playwright() as play:
        room.environment |= {"POSTROOM_PRELOAD": ""}
        room.start("0")
        master = subprocess.Popen(
            [sys.executable, "-m", "postroom", "master", room.base.root],
            env=room.environment,
            stderr=subprocess.DEVNULL,
        )
        page, address = start_page(room.base, environment=room.environment)
        browser = play.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield Desk(room, browser, address, shots)
        finally:
            browser.close()
            for process in (page, master):
                process.terminate()
                process.wait(20)
            # The Master's sessions are not the room's to end; and none is to wait for its job.
            Sessions(room.base).stop([agent.agent for agent in living(room)], now=True)


def living(room: RealSessions) -> list[AgentStatus]:
    agents = snapshot(room.base, runs=False).agents
    return [agent for agent in agents if agent.state != "dead"]


def badge(window: Any, state: str) -> Any:
    return window.locator("#live > .title > .badge", has_text=re.compile(f"^{state}$"))


def press(window: Any, name: str) -> None:
    window.get_by_role("button", name=name, exact=True).click()


def test_a_day_at_the_page(inbox: Desk) -> None:
    window = inbox.open("/submit", viewport=DESKTOP)
    assert "token" not in window.url

    # Three jobs, looked at before they are queued.
    window.get_by_label("Commands").fill(f"{COUNT}\nsleep 600\nsleep 600\n")
    window.get_by_label("Name").fill("count")
    window.get_by_label("Project").fill("demo")
    press(window, "Show what would be queued")
    window.get_by_role("heading", name="3 jobs would be queued in project demo").wait_for()
    assert os.listdir(inbox.room.base.job_pool) == []
    inbox.shoot(window, "submit")
    press(window, "Queue")
    window.get_by_text("Queued 3 jobs").wait_for()

    # They run, one after another: there is one session.
    row = window.locator("tr", has_text="count-1")
    row.get_by_text("running", exact=True).wait_for()
    window.locator("tr", has_text="count-3").get_by_text("queued", exact=True).wait_for()
    addresses = {
        name: window.get_by_role("link", name=name, exact=True).get_attribute("href")
        for name in ("count-1", "count-2", "count-3")
    }
    inbox.shoot(window, "jobs")

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
    inbox.shoot(window, "job")

    # The last gets a priority, so that it is next.
    other = inbox.open(addresses["count-3"])
    other.get_by_label("Priority").fill("5")
    press(other, "Set")
    other.get_by_text("now of priority 5").wait_for()

    # Killing asks first; "Leave it" leaves it.
    press(window, "Kill")
    inbox.shoot(window, "sure")
    press(window, "Leave it")
    assert badge(window, "running").is_visible()
    press(window, "Kill")
    press(window, "Kill it")
    badge(window, "cancelled").wait_for()
    badge(other, "running").wait_for()  # by news alone
    third = inbox.open(addresses["count-2"])
    assert badge(third, "queued").is_visible()

    # Paused, the queue begins nothing; resumed, it goes on.
    window.goto(inbox.root)
    press(window, "Pause the queue")
    window.get_by_text("The whole queue is paused").wait_for()
    badge(third, "paused").wait_for()
    press(other, "Kill")
    press(other, "Kill it")
    badge(other, "cancelled").wait_for()
    window.get_by_text("Nothing runs.").wait_for()
    assert badge(third, "paused").is_visible()
    inbox.shoot(window, "paused")
    press(window, "Resume the queue")
    badge(third, "running").wait_for()

    # What was killed is run again, as a new job that points to the old.
    window.goto(inbox.root + str(addresses["count-1"]))
    press(window, "Run again")
    window.get_by_text("queued again").wait_for()
    assert window.url.split("?")[0] != inbox.root + str(addresses["count-1"])
    assert window.locator("#to-earlier").get_attribute("href") == addresses["count-1"]
    badge(window, "queued").wait_for()
    press(third, "Kill")
    press(third, "Kill it")
    badge(window, "running").wait_for()

    # Agents are drained and filled again; the project is there, and so is the history.
    window.goto(inbox.root + "/agents")
    press(window, "Drain agent 0")
    window.get_by_text("drained", exact=True).wait_for()
    press(window, "Fill again agent 0")
    window.get_by_role("button", name="Drain agent 0", exact=True).wait_for()
    window.get_by_label("Cards", exact=True).fill("1")
    press(window, "Add")
    window.locator("tr", has_text="GPU 1").get_by_text("idle", exact=True).wait_for()
    press(window, "Remove agent 1")
    press(window, "Take it away")
    window.locator("tr", has_text="GPU 1").get_by_text("idle", exact=True).wait_for(
        state="detached"
    )
    window.goto(inbox.root + "/history?span=1h")
    assert window.locator(".gantt rect").count() > 0
    assert window.locator("tbody tr").count() == 4
    window.goto(inbox.root + "/jobs?text=" + str(addresses["count-2"]).split("-")[-1])
    assert window.url == inbox.root + str(addresses["count-2"])
    assert inbox.complaints == []


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


def test_nobody_is_kept_out(inbox: Desk) -> None:
    contrast = {"runOnly": ["color-contrast"]}
    sideways = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    window = inbox.open("/", viewport=DESKTOP, color_scheme="light")
    job = window.locator("a.job").first
    for path in PAGES + ([str(job.get_attribute("href"))] if job.count() else []):
        window.goto(inbox.root + path)
        name = path.split("?")[0].strip("/").replace("/", "-") or "overview"
        name = "job" if name.startswith("jobs-") else name
        assert serious(window) == []
        inbox.shoot(window, f"light-{name}")
        window.emulate_media(color_scheme="dark")
        if name in ("overview", "jobs", "job", "submit"):
            assert serious(window, contrast) == []
        inbox.shoot(window, f"dark-{name}")
        window.emulate_media(color_scheme="light")
        window.set_viewport_size(PHONE)
        assert not window.evaluate(sideways), f"{path} scrolls sideways"
        inbox.shoot(window, f"phone-{name}")
        window.set_viewport_size(DESKTOP)
    window.context.clear_cookies()
    window.goto(inbox.root)
    assert window.get_by_label("Token").is_visible()
    assert serious(window) == []


def test_the_keyboard_and_the_theme(inbox: Desk) -> None:
    window = inbox.open("/", color_scheme="light")
    window.keyboard.press("Tab")
    assert window.evaluate("document.activeElement.className") == "skip"
    window.keyboard.press("Enter")
    assert window.evaluate("document.activeElement.id") == "content"
    window.keyboard.press("/")
    assert window.evaluate("document.activeElement.id") == "search"
    ground = "getComputedStyle(document.body).backgroundColor"
    light = window.evaluate(ground)
    press(window, "Theme: as the system has it")
    press(window, "Theme: light")
    dark = window.evaluate(ground)
    assert dark != light
    window.reload()
    assert window.evaluate(ground) == dark


def test_a_hidden_page_holds_no_line(inbox: Desk) -> None:
    window = inbox.open("/")
    window.wait_for_function("() => document.documentElement.dataset.live === 'yes'")
    hide = """value => {
        Object.defineProperty(document, "hidden", { value, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    window.evaluate(hide, True)
    window.wait_for_function("() => document.documentElement.dataset.live === 'no'")
    window.evaluate(hide, False)
    window.wait_for_function("() => document.documentElement.dataset.live === 'yes'")


def test_a_list_holds_still_while_jobs_are_chosen(inbox: Desk) -> None:
    def hand_in(name: str) -> None:
        asks = [CommandSpec("true", name=name, cwd="/", scheduling=SchedulingOptions(held=True))]
        submit(LocalFiles(), inbox.room.base, asks, project="still")

    hand_in("first")
    window = inbox.open("/jobs?project=still")
    window.wait_for_function("() => document.documentElement.dataset.live === 'yes'")
    hand_in("second")
    window.get_by_role("link", name="second", exact=True).wait_for()  # by news alone
    window.evaluate(
        "() => document.body.addEventListener('htmx:beforeRequest', (e) => "
        "{ window.held = e.defaultPrevented; })"
    )
    box = window.locator("input[name=job]").first
    box.check()
    hand_in("third")
    window.wait_for_function("() => window.held === true")
    assert box.is_checked()
    assert window.get_by_role("link", name="third", exact=True).count() == 0
    box.uncheck()
    window.get_by_role("link", name="third", exact=True).wait_for()


def test_no_request_has_left_the_host(inbox: Desk) -> None:
    assert len(inbox.requested) >= 8
    assert {urlsplit(url).hostname for url in inbox.requested} == {"127.0.0.1"}
    window = inbox.open("/")
    blocked = window.evaluate(
        """() => new Promise((tell) => {
            document.addEventListener("securitypolicyviolation", (event) => tell(event.blockedURI));
            fetch("http://192.0.2.1/").catch(() => {});
        })"""
    )
    assert blocked == "http://192.0.2.1/"
