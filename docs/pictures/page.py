"""Photograph the page for the README and docs/web.md: a real queue on four simulated GPUs.

python docs/pictures/page.py      writes docs/web-overview.png, web-job.png and web-phone.png

It needs Chromium, and two minutes, in which the curves of the GPUs grow.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from postroom.gpus.cards.simulated import script

DOCS = Path(__file__).resolve().parent.parent
CURVES_S = 80.0
DESKTOP, PHONE = {"width": 1180, "height": 940}, {"width": 390, "height": 844}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# A training that prints its figures for a long time, or ends as its options say.
TRAIN = """\
import sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
for epoch in range(int(options.get("--epochs", 100000))):
    loss = 2 / (epoch + 2) + (epoch * 7919 % 40) / 1000
    print(f"epoch {epoch:4}  loss {loss:.4f}  accuracy {max(0.1, 1 - loss):.3f}", flush=True)
    time.sleep(0.2)
sys.exit("diverged: the loss is not a number" if options.get("--lr") == "10" else 0)
"""


class Queue:
    """A standing queue in a folder of its own, driven through the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = str(folder / "queue")
        self.project = folder / "resnet"
        self.cards = folder / "cards"
        for made in (self.project, self.cards):
            made.mkdir()
        (self.project / "train.py").write_text(TRAIN)
        scripts = os.path.dirname(sys.executable)
        self.environment = {
            **os.environ,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "POSTROOM_BASE": self.base,
            "POSTROOM_FAKE_GPUS": "4x24G:RTX-4090",
            "POSTROOM_FAKE_GPUS_FOLDER": str(self.cards),
            "POSTROOM_LEDGER": str(folder / "ledger"),
            "POSTROOM_PRELOAD": "",
            "LOGNAME": "ada",  # whoever takes the pictures: they show the same user
        }
        self.running: list[subprocess.Popen[str]] = []

    def postroom(self, *words: str) -> str:
        """Run one command of ours; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "postroom", *words],
            cwd=self.project,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start one that stays."""
        process = subprocess.Popen(
            [sys.executable, "-m", "postroom", *words],
            cwd=self.project,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.running.append(process)
        return process

    def close(self) -> None:
        """End all of it."""
        self.postroom("agents", "stop", self.base, "--now")
        for process in self.running:
            process.terminate()
            process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self) -> None:
        """Queue jobs; some end at once, one of them badly."""
        short = ("--", "python", "train.py", "--epochs", "1", "--lr")
        ids = [self.postroom("submit", "-P", "resnet", *short, rate) for rate in ("1", "10")]
        ids += [self.postroom("submit", "-P", "vae", *short, rate) for rate in ("0.5", "0.2")]
        self.postroom("wait", *ids)
        grid = [(rate, size) for rate in ("0.1", "0.01") for size in ("32", "64", "128", "256")]
        jobs = [
            self.postroom(
                *("submit", "-P", "resnet", "-n", f"train-{number}"),
                *("--", "python", "train.py", "--lr", rate, "--bs", size),
            )
            for number, (rate, size) in enumerate(grid, 1)
        ]
        self.postroom("submit", "-P", "vae", "-p", "5", "--", "python", "train.py", "--bs", "512")
        evaluate = ("--", "python", "train.py", "--epochs", "20")
        self.postroom("submit", "-P", "resnet", "-n", "evaluate", "--after", jobs[0], *evaluate)

    def play(self, moment: float) -> None:
        """Have the cards show what cards show."""
        changes = {}
        for index in range(4):
            busy = index < 3
            wave = math.sin(moment / 9 + index)
            load = min(99, 82 + 12 * wave + random.uniform(-6, 6)) if busy else 0
            changes[f"FAKE-{index}"] = {
                "used_mib": int(9500 + 1500 * math.sin(moment / 40 + index)) if busy else 450,
                "utilisation": round(load),
                "temperature": round(62 + 3 * index + 2 * wave) if busy else 38,
                "power": round(290 + 25 * wave) if busy else 21,
            }
        script(str(self.cards), changes)


def shoot(window: Page, name: str) -> None:
    """Write one picture."""
    path = DOCS / f"web-{name}.png"
    window.screenshot(path=path)
    print(f"docs/{path.name}: {path.stat().st_size:,} bytes")


def main() -> None:
    """Start a queue, let it work for a while, and photograph it."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("pictures of the page need Chromium: apt-get install chromium")
    queue = Queue(Path(tempfile.mkdtemp(prefix="demo-")))
    try:
        queue.play(0)
        queue.start("master", queue.base)
        deadline = time.monotonic() + 30
        while not os.path.exists(f"{queue.base}/FORMAT") and time.monotonic() < deadline:
            time.sleep(0.05)
        queue.postroom("agents", "add", queue.base, "0,1,2")
        queue.fill()
        page = queue.start("ui", queue.base, "--port", "0")
        assert page.stdout is not None
        address = page.stdout.readline().strip()
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
            window = browser.new_page(viewport=DESKTOP, color_scheme="light")
            window.goto(address)
            began = time.monotonic()
            while (moment := time.monotonic() - began) < CURVES_S:
                queue.play(moment)
                window.wait_for_timeout(500)
            shoot(window, "overview")
            window.set_viewport_size(PHONE)
            window.wait_for_timeout(500)
            shoot(window, "phone")
            window.set_viewport_size(DESKTOP)
            window.emulate_media(color_scheme="dark")
            window.get_by_role("link", name="train-2").first.click()
            window.wait_for_timeout(2000)
            shoot(window, "job")
            browser.close()
    finally:
        queue.close()


if __name__ == "__main__":
    main()
