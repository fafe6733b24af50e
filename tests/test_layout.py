"""The layout of the house: layers, names, and what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .tested_elsewhere import TESTED_ELSEWHERE

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "postroom"

# The layers of the package, lowest first: folders, and the few modules of the public face. Each may
# import from those before it, and from nothing behind it, not even inside a function.
LAYERS = [
    "errors",
    "text",
    "system",
    "parcel",
    "gpus",
    "store",
    "calls",
    "jobs",
    "futures",
    "dispatch",
    "commands",
    "session",
    "pilots",
    "master",
    "queue",
    "batch",
    "functions",
    "adapters",
    "project",
    "web",
    "testing",
    "cli",
    "__main__",
    "__init__",
]
GPU_LAYERS = ["cards", "devices", "ledger", "memory"]


def modules() -> list[Path]:
    """Every module of the package; the template's files are links to the repository's root."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "template" not in path.parts]


def imports(path: Path) -> set[tuple[str, ...]]:
    """What a file imports from the package: at the top, late, or for its types alone."""
    package = path.relative_to(PACKAGE).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = package[: len(package) - node.level + 1]
            inside = (*home, *node.module.split(".")) if node.module else home
            found |= {inside} if inside else {(alias.name,) for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_layers_below_its_own(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    for other in imports(path):
        assert LAYERS.index(other[0]) <= LAYERS.index(parts[0]), ".".join(other)
        if parts[0] == other[0] == "gpus" and len(parts) > 2 and len(other) > 1:
            assert GPU_LAYERS.index(other[1]) <= GPU_LAYERS.index(parts[1]), ".".join(other)


def test_every_folder_has_its_place_among_the_layers() -> None:
    assert {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in modules()} == set(LAYERS)


def test_the_root_of_the_package_is_its_public_face() -> None:
    assert sorted(path.stem for path in PACKAGE.glob("*.py")) == [
        "__init__",
        "__main__",
        "errors",
        "jobs",
        "master",
        "testing",
    ]


# Below `cli` a module is named for its verb, as everybody would expect who looks for it.
NAMED_FOR_VERBS = PACKAGE / "cli"


def test_no_module_name_is_used_twice() -> None:
    names = Counter(
        path.stem
        for path in modules()
        if NAMED_FOR_VERBS not in path.parents and not path.stem.startswith("__")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_class_name_is_used_twice() -> None:
    names = Counter(
        node.name
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


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


def own_test(path: Path) -> Path:
    """The test file of a module: the same folder below `tests`, and the same name."""
    return TESTS / path.relative_to(PACKAGE).with_name(f"test_{path.stem}.py")


def test_every_module_has_a_test_file_of_its_name_or_a_reason_why_not() -> None:
    """What an `__init__` holds is imports and a docstring; it has nothing to test."""
    without = {
        path.relative_to(PACKAGE).with_suffix("").as_posix()
        for path in modules()
        if path.stem != "__init__" and not own_test(path).exists()
    }
    assert sorted(without - set(TESTED_ELSEWHERE)) == [], "write a test file, or a reason"
    assert sorted(set(TESTED_ELSEWHERE) - without) == [], (
        "it has a test file of its own, or is gone"
    )


def names_of(module: str) -> set[str]:
    """The words by which a test may mention a module: its own name, and what it defines."""
    nodes = ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text()))
    defined = {
        node.name
        for node in nodes
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    }
    stem = module.split("/")[-1]
    return {stem, *(part for part in stem.split("_") if len(part) > 2), *defined}


@pytest.mark.parametrize("module", TESTED_ELSEWHERE)
def test_what_is_tested_elsewhere_is_mentioned_there(module: str) -> None:
    entry = re.fullmatch(r"(\S+?)(?: \((\w+)\))?: .+", TESTED_ELSEWHERE[module])
    assert entry is not None, "write it as 'file: why', or 'file (word): why'"
    mentioned = set(re.findall(r"\w+", (TESTS / entry[1]).read_text()))
    assert ({entry[2]} if entry[2] else names_of(module)) & mentioned
