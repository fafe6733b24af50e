"""Runs the test suites of other projects, as they are installed here, over our adapters.

python -m tests.adapters.foreign                 all of them; prints counts
python -m tests.adapters.foreign submitit -x     one of them, with options for pytest

Nothing is copied: pytest finds the tests in the installed package. A plugin of this folder puts our
class in the place of theirs, and takes out the tests of a list, each with its reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Suite:
    """A suite: where its tests are, what puts us in place, and what is left out and why."""

    tests: Sequence[str]  # modules, as pytest's --pyargs takes them
    plugin: str
    quick: str  # which of them CI runs: an expression for -k
    at_least: int  # how many of these there are
    left_out: dict[str, str] = field(default_factory=dict)  # part of a test's id: the reason
    needs: str = ""  # a variable that says where the tests are, if they are not installed


SUITES = {
    "joblib": Suite(
        ["joblib.test.test_parallel"],
        "tests.adapters.over_joblib",
        "test_error_capture or test_parallel_pickling or test_threadpool_limitation_in_child_loky",
        6,
        {
            "test_effective_n_jobs_None[negative-int": "compares our number of agents with the "
            "number of threads of another backend",
            "test_nested_parallel_warnings[loky-multiprocessing": "expects a warning that a worker "
            "may not start processes; an agent may",
            "test_nested_parallel_warnings[multiprocessing-loky": "the same, below multiprocessing",
            "test_nested_parallel_warnings[threading-loky": "the same, below threads",
            "test_multiple_generator_call_separated_gc": "expects an error, since loky has one "
            "pool for the whole process; here both calls run",
            "test_thread_bomb_mitigation[loky": "its RecursionError cannot be pickled, and "
            "comes back as JobFailed with its text; loky is excused there, too",
        },
    ),
    "hydra": Suite(
        [str(Path(__file__).with_name("hydra_suite.py"))],
        "",  # pytest loads Hydra's own
        "TestLauncher and test_sweep_1_job",
        1,
    ),
    "optuna": Suite(
        [os.environ.get("POSTROOM_OPTUNA_TESTS", "tests/study_tests") + "/test_optimize.py"],
        "tests.adapters.over_optuna",
        "inmemory",
        5,
        # The wheel has no tests; they are in the source release of the same version.
        needs="POSTROOM_OPTUNA_TESTS",
    ),
    "submitit": Suite(
        ["submitit.local.test_local", "submitit.test_helpers"],
        "tests.adapters.over_submitit",
        "test_local_job or test_local_error or test_load_submission",
        3,
        {
            "test_make_subprocess": "calls a private function of the local executor, not ours",
            "snapshot": "takes a snapshot of submitit's own git repository, which is not installed",
        },
    ),
}


def run(name: str, *words: str, quick: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a suite in a process of its own, in an empty folder."""
    suite = SUITES[name]
    out = [word for test in suite.left_out for word in ("--left-out", test)]
    chosen = ["-k", suite.quick] if quick else []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        Path(folder, "ledger").mkdir(mode=0o700)
        return subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "--pyargs", *suite.tests, "-o", "addopts="),
                *("-p", "tests.adapters.leave_out", "-p", "no:cacheprovider"),
                *(("-p", suite.plugin) if suite.plugin else ()),
                *("-c", f"{folder}/pytest.ini", "--rootdir", folder, "--timeout", "300", "-q"),
                *(*out, *chosen, *words),
            ],
            env={
                **{key: value for key, value in os.environ.items() if "PYTEST" not in key},
                "PYTHONPATH": str(ROOT),
                "POSTROOM_FAKE_GPUS": "4x24G",
                "POSTROOM_LEDGER": f"{folder}/ledger",
                "POSTROOM_BASE": f"{folder}/base",
            },
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Return how many tests passed, failed, and so on."""
    last = re.findall(r"^.*\d+ passed.* in [\d.]+s.*$", done.stdout, re.MULTILINE)
    return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", "".join(last[-1:]))}


def main(words: list[str]) -> int:
    """Run what is asked for; the code is that of the worst."""
    names = [words[0]] if words[:1] and words[0] in SUITES else list(SUITES)
    worst = 0
    for name in names:
        if SUITES[name].needs not in {"", *os.environ}:
            print(f"{name}: left out: {SUITES[name].needs} does not say where its tests are")
            continue
        done = run(name, *words[1:])
        print(done.stdout, end="")
        print(f"{name}: {counts(done)}")
        for test, reason in SUITES[name].left_out.items():
            print(f"    left out: {test}: {reason}")
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
