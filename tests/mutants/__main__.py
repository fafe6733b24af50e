"""Apply each mutant to a copy of the tree and run its killer: `python -m tests.mutants [WORD ...]`.

Words choose the mutants whose rule contains one of them. Ends with 1 if one survives.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


def main(words: list[str]) -> int:
    """Try the chosen mutants, one after another, and print who killed them."""
    chosen = [m for m in MUTANTS if not words or any(word in m.rule for word in words)]
    survived = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        for name in ("postroom", "tests", "pyproject.toml"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, tree / name)  # type: ignore[operator]
        for mutant in chosen:
            killer = try_out(mutant, tree)
            survived += killer is None
            fate = "SURVIVED" if killer is None else "killed  "
            print(f"{fate}  {mutant.rule}  <- {killer or mutant.killer}", flush=True)
    seconds = time.monotonic() - began
    print(f"{len(chosen)} mutants, {survived} survived, {seconds:.0f} s")
    return 1 if survived else 0


def try_out(mutant: Mutant, tree: Path) -> str | None:
    """Apply a mutant, run its killer, and take it back; return the first test that failed."""
    path = tree / mutant.file
    source = path.read_text()
    if source.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.rule}: {mutant.file} has its text {source.count(mutant.old)} times"
        )
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        return kill(mutant.killer, tree)
    finally:
        path.write_text(source)


def kill(killer: str, tree: Path) -> str | None:
    """Run tests, or stories, in a tree; return what failed first."""
    first, *rest = killer.split()
    if first == "sim":
        command = ["tests.simulation", "--first", *rest]
    else:
        command = ["pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", killer]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tree,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    lines = done.stdout.splitlines()
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR", "python -m"))]
    if not failures:
        raise SystemExit(
            f"{' '.join(command)} did not run: {done.stdout[-500:]}{done.stderr[-500:]}"
        )
    return failures[0].removeprefix("FAILED ").split(" - ")[0][:110]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
