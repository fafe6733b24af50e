"""Dependencies point one way; this holds them to it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "postroom"

# Each module may import from those before it in this list, and from nothing behind it.
ORDER = [
    "errors",
    "settings",
    "cgroups",
    "pages",
    "files",
    "base",
    "journal",
    "checksum",
    "mark",
    "parcel",
    "plain",
    "npy",
    "payload",
    "decoder",
    "contents",
    "mailbox",
    "roll",
    "runs",
    "ids",
    "wishes",
    "control",
    "schedule",
    "standing",
    "agent",
    "kernels",
    "gpus",
    "tree",
    "commands",
    "watch",
    "register",
    "steward",
    "gatherer",
    "dispatch",
    "status",
    "doctor",
    "jobs",
    "intake",
    "master",
    "report",
    "session",
    "batch",
    "functions",
    "queue",
    "web",
    "testing",
    "cli",
]


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, type-checking imports left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    depth = len(path.relative_to(PACKAGE).parts)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names}
    return found


@pytest.mark.parametrize("room", ORDER)
def test_a_module_imports_only_what_lies_below_it(room: str) -> None:
    folder = PACKAGE / room
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]
    allowed = {*ORDER[: ORDER.index(room)], room}
    for path in paths:
        assert imports(path) <= allowed, path


def test_every_module_has_its_place_in_the_order() -> None:
    rooms = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.name for path in PACKAGE.iterdir() if path.is_dir()
    }
    assert rooms - {"__init__", "__main__", "__pycache__", "template"} == set(ORDER)


def test_inside_the_package_all_imports_are_relative() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "template" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").split(".")[0] != "postroom", path


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("postroom.master", {"torch"}),
        ("postroom.session.guardian", {"torch"}),
        ("postroom.__main__", {"torch", "numpy", "rich", "fastapi", "watchdog"}),
        ("postroom.cli.jobs", {"torch", "numpy", "rich", "fastapi", "watchdog", "redis"}),
        ("postroom.cli.status", {"torch", "numpy", "rich", "fastapi", "watchdog", "redis"}),
        ("postroom.cli.submit", {"torch", "numpy", "rich", "fastapi", "watchdog", "redis", "ssl"}),
        ("postroom.cli.gpu", {"torch", "numpy", "rich", "redis", "watchdog"}),
    ],
)
def test_nobody_pays_for_imports_they_do_not_use(module: str, heavy: set[str]) -> None:
    script = f"import sys, {module}; print(*[m for m in sys.modules if '.' not in m])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not heavy & set(done.stdout.split())
