"""`kill -9` of page and scheduler under load: jobs continue, and the next page is right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from postroom.store.base import Base
from postroom.testing import sessions, wait_until

from .conftest import TOKEN, start_page

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
JOBS = 24


def get(address: str, path: str) -> Any:
    return httpx.get(address.split("/?")[0] + path, headers=HEADERS, timeout=60).json()


def start_master(base: Base, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "postroom", "master", base.root]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def test_jobs_continue_without_the_page_and_the_scheduler(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    touched.mkdir()
    started: list[subprocess.Popen[Any]] = []
    with sessions(tmp_path / "base") as started_sessions:
        started_sessions.environment |= {"POSTROOM_PRELOAD": ""}
        started_sessions.start("0")
        started_sessions.start("1", "1")
        try:
            master = start_master(started_sessions.base, started_sessions.environment)
            page, address = start_page(
                started_sessions.base, environment=started_sessions.environment
            )
            started += [master, page]
            body = {
                "commands": [
                    f"echo x >> {touched}/{n}; until [ -e {tmp_path}/go ]; do sleep 0.02; done"
                    for n in range(JOBS)
                ],
                "project": "storm",
            }
            queued = httpx.post(
                address.split("/?")[0] + "/api/jobs", headers=HEADERS, json=body, timeout=60
            ).json()["jobs"]
            assert len(queued) == JOBS
            wait_until(lambda: len(os.listdir(touched)) == 2, what="two jobs running")
            running = {job["id"] for job in get(address, "/api/jobs?state=running")["jobs"]}

            # Kill both at once, with two running jobs, a queue and an open page.
            updates = httpx.stream("GET", address.split("/?")[0] + "/events", headers=HEADERS)
            with updates as answer:
                next(answer.iter_raw())
                for process in (page, master):
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            page, address = start_page(
                started_sessions.base, environment=started_sessions.environment
            )
            started.append(page)
            look = get(address, "/api/overview")
            assert look["master_pid"] is None
            assert {job["id"] for job in look["running"]} == running
            assert look["counts"]["queued"] == JOBS - 2

            # The next scheduler carries out what was requested meanwhile.
            last = queued[-1]
            asked = httpx.post(
                address.split("/?")[0] + "/api/requests/jobs",
                headers=HEADERS,
                json={"verb": "kill", "jobs": [last]},
                timeout=60,
            ).json()
            assert not asked["done"]
            assert "no scheduler is running" in asked["text"]
            (tmp_path / "go").touch()
            started.append(start_master(started_sessions.base, started_sessions.environment))
            wait_until(
                lambda: get(address, "/api/overview")["counts"].get("ok") == JOBS - 1,
                what="all jobs done",
                folder=started_sessions.base.root,
            )
            assert get(address, f"/api/jobs/{last}")["job"]["state"] == "cancelled"
            # Each job ran exactly once.
            assert sorted(os.listdir(touched), key=int) == [str(n) for n in range(JOBS - 1)]
            assert all((touched / str(n)).read_text() == "x\n" for n in range(JOBS - 1))
        finally:
            for process in started:
                if process.poll() is None:
                    process.terminate()
                process.wait(20)
