from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from postroom.gpus.cards import inventory
from postroom.gpus.ledger.protocol import open_ledger
from postroom.jobs import Job
from postroom.master import Master
from postroom.queue.base_check import LOCAL, Finding, examine
from postroom.queue.queue_view import QueueView
from postroom.store.base import create_base
from postroom.system.filesystem import NETWORK
from postroom.system.processes import myself
from tests.by_hand import PostRoom
from tests.in_one_process import in_one_process

DOUBLE = "def double(x):\n    return x * 2\n"


def worst(findings: list[Finding], word: str) -> str:
    """The level of the findings that mention a text."""
    (level,) = {finding.level for finding in findings if word in finding.what}
    return level


def everything(folder: Path) -> list[tuple[str, int, int]]:
    return [
        (str(path), path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in sorted(folder.rglob("*"))
    ]


def test_a_sound_base_has_no_faults_and_is_left_as_it_was(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as running:
        running.run([Job("kernels:double", x=1)])
        running.master.close()
        before = everything(Path(running.base.root))
        findings = list(examine(running.base.root))
        assert everything(Path(running.base.root)) == before
    levels = {finding.level for finding in findings if "agent" not in finding.what}
    assert "error" not in levels
    assert worst(findings, "locks exclude") == "ok"


def test_no_base_is_one_finding(tmp_path: Path) -> None:
    (finding,) = examine(tmp_path / "none")
    assert finding.level == "error"


def test_bad_parcels_orphans_old_files_and_rejected_files_are_found(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as running:
        pool = running.run([Job("kernels:double", x=1)])
        running.master.close()
        root = Path(running.base.root)
        Path(running.base.result(pool.run, 5)).write_bytes(b"garbage")
        (root / "result_pool" / "gone").mkdir()
        (root / "result_pool" / "gone" / "000000000.npz").touch()
        (root / "rejected" / "x.reason").touch()
        (root / "tmp" / "old").touch()
        os.utime(root / "tmp" / "old", (0, time.time() - 10**6))
        (root / "data").chmod(0o755)
        (root / "attempts").rename(root / "elsewhere")
        findings = list(examine(root))
    assert worst(findings, "a bad parcel") == "error"
    assert worst(findings, "belong to no run") == "note"
    assert worst(findings, "rejected/") == "warning"
    assert worst(findings, "older than a day") == "note"
    assert worst(findings, "other users can read data") == "warning"
    assert worst(findings, "folders are missing: attempts") == "error"
    assert all(finding.advice for finding in findings if finding.level in ("error", "warning"))


def test_a_dead_agent_is_found(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as running:
        findings = list(examine(running.base.root))
        assert worst(findings, "agent 0 is dead") == "warning"


def test_an_unfinished_run_without_a_master_is_found(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as running:
        running.master.submit_all([Job("kernels:double", x=1)])
        assert worst(list(examine(running.base.root)), "1 jobs are not done") == "note"


def test_jobs_without_an_agent_and_a_quarantined_card_are_found(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as running:
        running.master.submit_all([Job("kernels:double", x=1)])
        uuid = inventory.cards()[1].uuid
        open_ledger().quarantine(uuid, "it hums")
        findings = list(examine(running.base.root))
    assert worst(findings, "1 jobs are not done, and no agent is running") == "note"
    assert worst(findings, "it hums") == "warning"
    (finding,) = [one for one in findings if "it hums" in one.what]
    assert finding.advice.endswith("postroom gpu heal 1")


def test_no_network_filesystem_counts_as_local() -> None:
    assert not LOCAL & NETWORK


@pytest.mark.parametrize(("spoil", "code"), [(False, 0), (True, 1)])
def test_the_command_speaks_json_and_its_exit_code_tells(
    tmp_path: Path, spoil: bool, code: int
) -> None:
    base = create_base(tmp_path / "base")
    if spoil:
        os.rmdir(f"{base.root}/attempts")
    done = subprocess.run(
        [sys.executable, "-m", "postroom", "doctor", base.root, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert {"level", "what", "advice"} == set(json.loads(done.stdout)[0])


def test_an_append_log_that_has_lost_a_job_is_an_error(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=0) as running:
        pool = running.master.open()
        for x in range(3):
            pool.submit(Job("kernels:double", x=x))
        assert not [f for f in examine(running.base.root) if "has lost" in f.what]
        path = Path(running.base.append_log(pool.run))
        path.write_bytes(bytes(64) + path.read_bytes()[64:])
        assert worst(list(examine(running.base.root)), "has lost 1 jobs, the first is 0") == "error"


@pytest.mark.parametrize("how", [os.unlink, lambda path: os.truncate(path, 100)])
def test_a_list_whose_parcel_is_bad_is_an_error(tmp_path: Path, how: Any) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=0) as running:
        pool = running.master.submit_all([Job("kernels:double", x=x) for x in range(3)])
        (parcel,) = Path(running.base.run_folder(pool.run)).glob("*.npz")
        how(parcel)
        assert worst(list(examine(running.base.root)), "has lost 3 jobs, the first is 0") == "error"


def test_a_stopped_scheduler_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = create_base(tmp_path / "base")
    with Master(base.root) as master:
        master.step(0.0)
        monkeypatch.setattr("postroom.queue.base_check.is_stopped", lambda one: one == myself())
        (finding,) = [one for one in examine(base.root) if "is stopped" in one.what]
    assert finding.level == "error"
    assert f"kill -CONT {os.getpid()}" in finding.advice


def test_orders_that_cannot_be_read_and_files_of_another_version_are_errors(tmp_path: Path) -> None:
    room = PostRoom(tmp_path)
    room.run(1)
    info = Path(room.base.run_info("r"))
    info.write_text(info.read_text().replace('"version": 1', '"version": 2'))
    room.files.make_folder(room.base.control)
    Path(room.base.orders).write_text("{")
    Path(room.base.control, f"{1:020d}-aaaaaa.json").write_text('{"version": 2}')
    findings = list(examine(room.base.root))
    assert worst(findings, "it is a run's info of version 2") == "error"
    assert worst(findings, "it is a request of version 2") == "error"
    assert worst(findings, "no job starts, because nobody knows what is held") == "error"
    with QueueView(room.base, room.files) as view:
        troubles = view.read_state().troubles
    assert [f"rm '{room.base.orders}'" in troubles[0], "version 2" in troubles[1]] == [True, True]
