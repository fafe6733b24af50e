"""The short version of `make chaos`: a minute of storm, and a sample of faults at system calls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


def chaos(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run one program of chaos to its end, and return its table; what it found is the message."""
    path = tmp_path / "table.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", *arguments, "--json", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table: dict[str, Any] = json.loads(path.read_text())
    return table


def need(program: str) -> None:
    if shutil.which(program) is None:
        why = f"{program} is not installed"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "run",
    [["--jobs", "900"], ["--jobs", "200", "--one-by-one"], ["--jobs", "600", "--embedded"]],
    ids=["kept", "one by one", "embedded"],
)
def test_a_storm_of_kills_loses_and_doubles_nothing(tmp_path: Path, run: list[str]) -> None:
    size = ["--run-jobs", "200", "--sessions", "3", "--longest-s", "0.05", "--limit-s", "280"]
    table = chaos(tmp_path, "storm", *run, *size, "--kills", "30")
    assert table["lost"] == table["doubled"] == table["spoilt"] == 0
    assert table["kills and stops"] == 30
    assert table["runs removed"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kill_or_an_error_at_any_system_call_loses_nothing(tmp_path: Path) -> None:
    need("strace")
    need("gcc")
    table = chaos(tmp_path, "calls", "--sample", "100")
    assert table["tried"] == 100
    assert table["system calls"] > 300
    assert table["violations"] == 0
