"""The short starts of the README, copied out of it and run as they are printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def start(heading: str, language: str) -> list[str]:
    """The blocks of one of the three starts."""
    readme = (ROOT / "README.md").read_text()
    section = readme.split(f"### {heading}\n")[1].split("\n##")[0].split("\n<!--")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run it as somebody would whose environment is activated, and whose home is empty."""
    scripts = os.path.dirname(sys.executable)
    environment = {
        **os.environ,
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "HOME": str(folder),
    }
    environment.pop("POSTROOM_BASE", None)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )


def test_python_functions(tmp_path: Path) -> None:
    functions, _ = start("Python functions", "python")
    assert len([line for line in functions.splitlines() if line.strip()]) <= 10
    (tmp_path / "cubes.py").write_text(functions)
    done = run(tmp_path, "python", "cubes.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{sum(x**3 for x in range(100))}\n"


def test_what_can_travel(tmp_path: Path) -> None:
    if "CI" not in os.environ:
        pytest.importorskip("pandas", reason="pip install 'postroom[frames]'")
    page = (ROOT / "docs" / "values.md").read_text()
    module, program = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "training.py").write_text(module)
    (tmp_path / "example.py").write_text(program)
    done = run(tmp_path, "python", "example.py")
    assert done.returncode == 0, done.stderr
    *_, head, _, _, last, shapes = done.stdout.splitlines()
    assert head.split() == ["job", "config.lr", "loss", "status"]
    assert last.split()[1:3] == ["2", "0.3"]
    assert shapes == "(3,) (3, 4)"


def test_a_master_and_its_sessions(tmp_path: Path) -> None:
    _, example = start("Python functions", "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    (tmp_path / "example.py").write_text(example)
    shutil.copy(ROOT / "expensive_task.py", tmp_path)
    done = run(tmp_path, "python", "example.py")
    assert done.returncode == 0, done.stderr
    assert "100 jobs, 100 ok, 0 failed" in done.stdout


def test_a_file_of_shell_lines(tmp_path: Path) -> None:
    (lines,) = start("A file of shell lines", "sh")
    done = run(tmp_path, "bash", "-e", "-c", lines)
    assert done.returncode == 0, done.stderr
    assert "3 ok, 0 failed" in done.stdout + done.stderr
    assert "0 ok, 0 failed, 3 done before" in done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("job_")]
    assert [row[:2] for row in rows] == [["job_1", "ok"], ["job_2", "ok"], ["job_3", "ok"]]
    assert "0.04" in " ".join(rows[0])


def test_a_standing_queue_with_its_page(tmp_path: Path) -> None:
    (lines,) = start("A standing queue with its page", "sh")
    try:
        done = run(tmp_path, "bash", "-e", "-c", lines)
        assert done.returncode == 0, done.stderr
        assert "\ntrained\n" in done.stdout
        assert re.search(r"^http://127\.0\.0\.1:\d+/\?token=\S+$", done.stdout, re.MULTILINE)
    finally:
        stopped = run(tmp_path, "postroom", "down", "--now")
    assert stopped.returncode == 0, stopped.stderr
