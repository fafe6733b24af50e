"""Tries the package with the lowest and the newest releases of what it depends on.

    python -m tests.compatibility [VERSION ...]

For each Python from 3.11 to 3.14 that is found, and each end, it makes an environment without torch
and runs the quick tests in it. The lowest releases are those that pyproject.toml names.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TOOLS = ["pytest", "pytest-timeout", "hypothesis", "httpx", "psutil"]
TESTS = ["parcel/test_encode.py", "parcel/test_sheets.py", "store", "text", "dispatch", "session"]
TESTS += [
    "test_master.py",
    "test_jobs.py",
    "web/test_api.py",
    "web/test_pages.py",
    "cli/test_jobs.py",
]


def find(version: str) -> str | None:
    """The path of a Python: on the PATH, or one of pyenv's."""
    ours = glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python"))
    for path in [*sorted(ours), shutil.which(f"python{version}") or ""]:
        probe = [path, "-c", "import ensurepip, venv"]
        if path and subprocess.run(probe, capture_output=True).returncode == 0:
            return path
    return None


def requirements(version: str, end: str) -> list[str]:
    """What to install: the lowest releases that pyproject.toml allows there, or the newest."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lowest: dict[str, str] = {}
    for text in [*project["dependencies"], *extras["redis"], *extras["web"]]:
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate({"python_version": version}):
            (bound,) = one.specifier
            lowest[one.name] = bound.version  # a later line is for later Pythons
    return [f"{name}=={bound}" if end == "lowest" else name for name, bound in lowest.items()]


def attempt(python: str, version: str, end: str) -> int:
    """Make an environment, and run the tests in it; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="compatibility-") as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/pip", "install", "--quiet", "--only-binary", ":all:"]
        subprocess.run([*pip, *requirements(version, end), *TOOLS], check=True)
        subprocess.run([*pip[:3], "hatchling", "editables"], check=True)
        subprocess.run([*pip[:3], "--no-deps", "--no-build-isolation", "-e", ROOT], check=True)
        tests = [str(ROOT / "tests" / name) for name in TESTS]
        command = [f"{folder}/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        return subprocess.run(command, cwd=ROOT).returncode


def main(versions: list[str]) -> int:
    """Try every Python that is there; 1 if one of them fails."""
    failed = 0
    for version in versions or VERSIONS:
        python = find(version)
        if python is None:
            print(f"Python {version}: not found, not tried", flush=True)
            continue
        for end in ("lowest", "newest"):
            code = attempt(python, version, end)
            failed += code != 0
            print(f"Python {version}, {end} releases: {'FAILED' if code else 'passed'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
