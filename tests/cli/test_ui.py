"""The command: what it prints, where it listens, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from postroom.store.base import Base, create_base
from postroom.testing import wait_until
from tests.web.conftest import TOKEN


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroom", "ui", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_detached_page_goes_on_and_keeps_the_token_to_itself(base: Base) -> None:
    done = run(base.root, "--port", "0", "--detach", POSTROOM_UI_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    pid = int(re.findall(r"pid (\d+)", done.stderr)[0])
    try:
        address = done.stdout.strip()
        assert address.startswith("http://127.0.0.1:")
        # The socket listens from the start: an early request waits, and is answered.
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.get(address.split("?")[0] + "api/jobs", headers=headers, timeout=60)
        assert answer.status_code == 200
        with open(f"/proc/{pid}/cmdline") as file:
            assert TOKEN not in file.read()
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}/exe"), what="the end of the page")


def test_the_page_ends_in_silence_while_somebody_listens(base: Base) -> None:
    done = run(base.root, "--port", "0", "--detach", POSTROOM_UI_TOKEN=TOKEN)
    pid = int(re.findall(r"pid (\d+)", done.stderr)[0])
    address = done.stdout.split("?")[0] + "events"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.stream("GET", address, headers=headers, timeout=60) as news:
        heard = news.iter_raw()
        next(heard)
        os.kill(pid, signal.SIGINT)
        list(heard)  # to its end
    wait_until(lambda: not os.path.exists(f"/proc/{pid}/exe"), what="the end of the page")
    said = Path(base.root, "log", "ui.txt").read_text()
    assert said.strip() == "Ctrl-C stops the page; jobs keep running."


def test_another_address_is_warned_about(base: Base) -> None:
    done = run(base.root, "--port", "0", "--host", "0.0.0.0", "--detach")
    pid = int(re.findall(r"pid (\d+)", done.stderr)[0])
    try:
        assert "warning: others may reach 0.0.0.0" in done.stderr
        port = re.findall(r":(\d+)/", done.stdout)[0]
        own = httpx.get(f"http://127.0.0.1:{port}/", timeout=60)
        assert own.status_code == 401
        other = httpx.get(f"http://127.0.0.1:{port}/", headers={"Host": "x.example"}, timeout=60)
        assert other.status_code == 421
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}/exe"), what="the end of the page")


def test_what_cannot_be_is_a_sentence(base: Base, tmp_path: Path) -> None:
    for words, said in (
        ([str(tmp_path / "absent")], "there is no base"),
        ([base.root, "--token", "short"], "at least 16"),
        ([base.root, "--host", "192.0.2.1", "--port", "0"], "cannot listen"),
    ):
        done = run(*words)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
