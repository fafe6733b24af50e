"""The documentation is executed: what it shows works, what it names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroom.cli.verbs import VERBS, postroom

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_ten_lines_of_the_readme_run(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    (tmp_path / "example.py").write_text(example)
    (tmp_path / "expensive_task.py").write_text(
        "import numpy as np\n"
        "def expensive_task(a, b, shared):\n"
        "    return {'norm': float(np.linalg.norm(a @ b * shared['weights']))}\n"
    )
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "100 jobs, 100 ok, 0 failed" in done.stdout


def test_the_make_targets_of_the_readme_exist() -> None:
    named = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named == {"run", "test", "bench", "chaos"}
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_names_the_seven_files_and_they_exist() -> None:
    table = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(table) == 7
    for name in table:
        assert (ROOT / name).exists()
        assert (ROOT / "postroom" / "project" / "template" / name).resolve() == ROOT / name


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_every_verb_explains_itself(verb: str) -> None:
    done = CliRunner().invoke(postroom, [*verb.split(), "--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.output
    if verb:
        assert len(done.output.splitlines()) > 5, "it says nothing but its name"


def test_the_walks_of_the_architecture_name_functions_that_exist() -> None:
    walks = (ROOT / "docs" / "architecture.md").read_text().split("## Walk ")[1:3]
    steps = [
        (file, name)
        for walk in walks
        for file, names in re.findall(r"^\| `(postroom/[\w/.]+)` \| ([^|]+) \|", walk, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert len(steps) > 40
    for file, name in steps:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
