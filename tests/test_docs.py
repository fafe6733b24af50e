"""The documentation is executed: what it shows works, what it names exists.

`tests/processes/test_readme.py` runs the three short starts of the README.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt
from markdown_it.token import Token

from postroom.cli.verbs import VERBS, postroom
from postroom.jobs import POOL_CALLS, JobPool
from postroom.master import MASTER_CALLS, Master

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob(".github/**/*.md")])


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt().enable("table").parse(page.read_text())


def links(page: Path) -> Iterator[str]:
    """Where the links and pictures of a page lead, as far as they stay in the repository."""
    for token in tokens(page):
        for child in token.children or []:
            target = child.attrGet("href" if child.type == "link_open" else "src")
            if isinstance(target, str) and not re.match(r"\w+:", target):
                yield unquote(target)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub, and our site, give to the headings of a page."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    body = tokens(page)
    for opening, inline in pairwise(body):
        if opening.type == "heading_open":
            parts = [child.content for child in inline.children or []]
            slug = re.sub(r"[^\w\- ]", "", "".join(parts).lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert ROOT in target.resolve().parents, link
        if anchor:
            assert anchor in anchors(target), link


def test_every_picture_of_the_docs_is_shown_somewhere() -> None:
    shown = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    pictures = [path for path in (ROOT / "docs").iterdir() if path.suffix in {".svg", ".png"}]
    assert [path.name for path in pictures if path not in shown] == []


def test_the_recording_of_the_terminal_is_small_and_needs_nothing_from_elsewhere() -> None:
    for name in ("terminal.svg", "commands.svg"):
        drawing = (ROOT / "docs" / name).read_text()
        assert len(drawing.encode()) < 150_000
        assert re.findall(r"https?://[^\"' )]+", drawing) == ["http://www.w3.org/2000/svg"]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("sphinx") is None or importlib.util.find_spec("furo") is None:
        if os.environ.get("CI"):
            pytest.fail("Sphinx is missing: the Makefile installs it")
        pytest.skip("needs Sphinx: pip install -c constraints.txt -e '.[docs]'")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*build, "-d", str(tmp_path / "doctrees"), "docs", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    command_line = (tmp_path / "site" / "cli.html").read_text()
    for verb in [*VERBS, "gpu get", "agents start"]:
        assert f'id="postroom-{verb.replace(" ", "-")}"' in command_line
    assert 'id="postroom.Master.run"' in (tmp_path / "site" / "api.html").read_text()


def test_the_make_targets_of_the_readme_exist() -> None:
    named = set(re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named == {"run", "test", "docs", "bench", "chaos"}
    assert named <= targets


def test_the_readme_names_the_seven_files_and_they_exist() -> None:
    section = README.read_text().split("## The seven files")[1].split("\n## ")[0]
    table = re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)
    assert len(table) == 7
    for name in table:
        assert (ROOT / name).exists()
        assert (ROOT / "postroom" / "project" / "template" / name).resolve() == ROOT / name


def test_every_file_that_names_the_version_names_the_same() -> None:
    (version,) = re.findall(
        r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()
    assert f"postroom-{version}-py3-none-any.whl" in README.read_text()


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


def test_the_table_of_folders_in_the_architecture_names_what_the_package_has() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("| folder or module |")[1].split("\n\n")[0]
    named = {word.removesuffix(".py") for word in re.findall(r"`([\w.]+)`", table)}
    paths = list((ROOT / "postroom").rglob("*.py"))
    known = {path.stem for path in paths} | {path.parent.name for path in paths}
    code = "\n".join(path.read_text() for path in paths)
    classes = set(re.findall(r"^class (\w+)", code, re.MULTILINE))
    assert len(named) > 40
    assert sorted(named - known - classes) == []


@pytest.mark.parametrize(
    ("variable", "owner", "calls"),
    [("master", Master, MASTER_CALLS), ("pool", JobPool, POOL_CALLS)],
)
def test_what_is_public_is_in_the_table_of_calls_and_no_page_or_example_uses_more(
    variable: str, owner: type, calls: tuple[str, ...], tmp_path: Path
) -> None:
    used = rf"\b{variable}\.(?!(?:lock|json|py)\b)([a-z_]+)"
    table = (ROOT / "docs/python.md").read_text()
    assert set(re.findall(used, table)) == set(calls)
    assert not any(name.startswith("_") for name in calls)
    with Master(tmp_path) as master:
        one = master if owner is Master else master.open()
        assert dir(one) == sorted(calls)
        assert all(hasattr(one, name) for name in calls)
    sources = [*PAGES, *ROOT.glob("*.py"), *ROOT.glob("examples/*.*")]
    for source in sources:
        text = source.read_text()
        if variable == "pool" and "multiprocessing" in text:
            continue  # its pools are others
        assert set(re.findall(used, text)) <= set(calls), source
