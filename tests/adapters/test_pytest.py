"""`pytest -p postroom`: real runs of pytest, alone and with xdist, on simulated cards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.gpus.ledger.protocol import open_ledger

CONFTEST = """
import os, sys
SEEN = os.environ.get("CUDA_VISIBLE_DEVICES")  # what an `import torch` would see here

def pytest_configure(config):
    with open(os.environ["SEEN"], "a") as file:
        print(os.environ.get("PYTEST_XDIST_WORKER", "alone"), SEEN, file=file)
"""
TESTS = """
import os, signal
import pytest
from postroom.gpus.ledger.protocol import open_ledger

@pytest.mark.parametrize("number", range(4))
def test_it(gpu, number):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu.visible_id
    held = [entry for entry in open_ledger().holders() if gpu.uuid in entry.cards]
    assert [entry.memory_mib for entry in held] == [MEMORY]

def test_one_worker_dies():
    died = os.environ["SEEN"] + ".died"
    if "PYTEST_XDIST_WORKER" in os.environ and not os.path.exists(died):
        open(died, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run(
    tmp_path: Path, *words: str, memory_mib: int | None = None
) -> tuple[subprocess.CompletedProcess[str], dict[str, set[str]]]:
    """Run pytest; return how it ended and which GPUs each process saw when it began."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "conftest.py").write_text(CONFTEST)
    (project / "test_them.py").write_text(TESTS.replace("MEMORY", str(memory_mib)))
    seen = tmp_path / "seen"
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    plugins = ["-p", "postroom", *(["-p", "xdist.plugin"] if "-n" in words else [])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-q", *words, str(project)],
        # Only these plugins: a worker starts in half the time.
        env={**environment, "SEEN": str(seen), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    gpus: dict[str, set[str]] = {}
    for line in seen.read_text().splitlines() if seen.exists() else []:
        who, gpu = line.split()
        gpus.setdefault(who, set()).add(gpu)
    return done, gpus


def test_a_plain_run_has_a_gpu_before_anything_is_imported(tmp_path: Path) -> None:
    done, gpus = run(tmp_path)
    assert "5 passed" in done.stdout, done.stdout + done.stderr
    assert gpus == {"alone": {"0"}}
    assert open_ledger().holders() == []


def test_each_worker_has_a_gpu_of_its_own_also_one_that_takes_a_dead_ones_place(
    tmp_path: Path,
) -> None:
    done, gpus = run(tmp_path, "-n", "2")
    assert "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running" in done.stdout
    assert gpus.pop("alone") == {"None"}, "the controller runs no test, and needs no GPU"
    assert sorted(gpus) == ["gw0", "gw1", "gw2"]
    first = {who: gpus[who] for who in ("gw0", "gw1")}
    assert sorted(gpu for seen in first.values() for gpu in seen) == ["0", "1"]
    assert gpus["gw2"] in first.values()


def test_workers_share_gpus_where_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x24G")
    done, gpus = run(tmp_path, "-n", "2", "-k", "test_it", "--gpu-memory", "4G", memory_mib=8192)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert gpus["gw0"] == gpus["gw1"] == {"0"}


def test_more_workers_than_gpus_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "-n", "6")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--gpu-memory" in done.stderr, done.stderr


def test_without_a_gpu_only_the_tests_that_need_one_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "")
    done, _ = run(tmp_path)
    assert "1 passed, 4 skipped" in done.stdout, done.stdout + done.stderr
