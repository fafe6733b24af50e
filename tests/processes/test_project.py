"""The user's card, as a user would type it: the root files as black boxes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from postroom.parcel.sheets import OutcomeSheet
from postroom.store.base import Base
from postroom.system.process_tree import mark_of, marked
from postroom.testing import wait_until

ROOT = Path(__file__).parent.parent.parent

QUICK = """
import numpy as np
def expensive_task(a, b, shared, device):
    return {"norm": float(np.linalg.norm(a @ b * shared["weights"]))}
"""
# Slow enough to be killed in the middle, fast enough not to be waited for.
SLOW = """
import os, time
def expensive_task(a, b, shared, device):
    time.sleep(0.05)
    return os.getpid()
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The template, with a kernel that needs no torch; its agents are ended afterwards."""
    folder = tmp_path / "my project"
    subprocess.run([sys.executable, "-m", "postroom", "new", str(folder)], cwd=ROOT, check=True)
    (folder / "expensive_task.py").write_text(QUICK)
    yield folder
    for base in folder.glob("*/FORMAT"):
        python(folder, "agent.py", "stop", str(base.parent), "--now")
        for agent in "0123":
            assert marked(mark_of(str(base.parent), agent)) == []


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one of the project's files to its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def start_agents(folder: Path, count: int, base: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["./start_agent.sh", str(count), base],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def worker_pids(output: str) -> set[str]:
    """The pids in the summary's last column."""
    return set(re.findall(r" s  (\d+)$", output, re.MULTILINE))


def events(base: Path, kind: str) -> list[dict[str, object]]:
    lines = (base / "log" / "events.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == kind]


def covered(base: Path, run: str) -> list[int]:
    """Every job number that a result covers, as often as it is covered: read from the folder."""
    numbers: list[int] = []
    for path in (base / "result_pool" / run).iterdir():
        sheet = OutcomeSheet(str(path), path.read_bytes())
        numbers.extend(range(sheet.first, sheet.first + sheet.count))
    return sorted(numbers)


def the_run(base: Path) -> str:
    (run,) = os.listdir(base / "job_pool")
    return run


def test_main_starts_its_own_agents_runs_and_leaves_no_process(project: Path) -> None:
    done = python(project, "main.py", "--n-tasks", "12", "--size", "16")
    assert done.returncode == 0, done.stderr
    assert "12 of 12 ok, 0 failed" in done.stdout
    assert "agent 0 started" in done.stderr and "12/12 done" in done.stderr
    assert [agent for agent in "01" if marked(mark_of(f"{project}/base", agent))] == []
    assert list((project / "base" / "agent_pool").glob("*.POOL")) == []
    assert list((project / "base" / "agent_pool").glob("*.json")) == []


def test_the_template_kernel_runs_with_torch_on_the_cpu(project: Path) -> None:
    (project / "expensive_task.py").write_text((ROOT / "expensive_task.py").read_text())
    done = python(
        project,
        *["main.py", "--n-tasks", "6", "--size", "32", "--n-gpu", "1"],
        POSTROOM_PRELOAD="torch",
        POSTROOM_FAKE_GPUS="",
    )
    assert done.returncode == 0, done.stderr
    assert "no GPU found: the agents run on the CPU" in done.stderr
    assert "6 of 6 ok" in done.stdout


def test_hot_agents_serve_two_runs_with_the_same_warm_workers(project: Path) -> None:
    first_start = start_agents(project, 4, "./my base")
    assert first_start.returncode == 0, first_start.stderr
    assert first_start.stdout.count(" started (pid ") == 4
    assert "postroom agents stop" in first_start.stdout and "postroom.log" in first_start.stdout
    again = start_agents(project, 4, "my base/")
    assert again.stdout.count("is running already") == 4

    runs = [
        python(project, "main.py", "--hot-start", "--base", "my base", "--size", "16")
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert worker_pids(runs[1].stdout) <= worker_pids(runs[0].stdout)
    assert worker_pids(runs[1].stdout)

    listed = json.loads(python(project, "agent.py", "list", "my base", "--json").stdout)
    assert [agent["state"] for agent in listed] == ["idle"] * 4
    assert sum(agent["done"] for agent in listed) == 120

    stopped = python(project, "agent.py", "stop", "my base")
    assert stopped.stdout.count("stopped") == 4


def test_a_living_session_keeps_its_card_and_says_so(project: Path) -> None:
    start_agents(project, 1, "base")
    rival = python(project, "gpu_session.py", "0", "./other")
    assert rival.returncode == 2
    assert "held by 'session 0 of" in rival.stderr
    twin = python(project, "gpu_session.py", "0", "./base")
    assert twin.returncode == 2
    assert "is running already" in twin.stderr or "held by" in twin.stderr


def test_more_gpus_than_there_are_is_an_error_before_anything_starts(project: Path) -> None:
    done = start_agents(project, 5, "base")
    assert done.returncode == 2
    assert "this machine has 4" in done.stderr
    assert not (project / "base").exists()


def test_an_unknown_gpu_is_named_with_those_that_exist(project: Path) -> None:
    done = python(project, "gpu_session.py", "9", "base")
    assert done.returncode == 2
    assert "9" in done.stderr and "Traceback" not in done.stderr


def test_a_hot_start_without_agents_says_how_to_start_some(project: Path) -> None:
    done = python(project, "main.py", "--hot-start")
    assert done.returncode == 1
    assert "./start_agent.sh" in done.stderr and "Traceback" not in done.stderr


def test_settings_come_from_options_then_variables_then_the_file(project: Path) -> None:
    done = python(project, "main.py", "--size", "8", POSTROOM_N_TASKS="7", POSTROOM_SIZE="4096")
    assert "7 of 7 ok" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import missing_package\ndef expensive_task(): pass\n", "missing_package"),
        ("def expensive_task(:\n", "line 1"),
        ("def another_name(): pass\n", "does not define 'expensive_task'"),
        ("raise SystemExit(3)\ndef expensive_task(): pass\n", "SystemExit"),
    ],
)
def test_a_kernel_that_cannot_be_imported_is_found_before_agents_start(
    project: Path, source: str, message: str
) -> None:
    (project / "expensive_task.py").write_text(source)
    done = python(project, "main.py")
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr
    assert "agent 0 started" not in done.stderr


def test_a_failing_job_makes_the_exit_code_1_and_is_explained(project: Path) -> None:
    (project / "expensive_task.py").write_text(
        "def expensive_task(a, b):\n    print('printed by it')\n    raise ValueError('no')\n"
    )
    done = python(project, "main.py", "--n-tasks", "3", "--size", "2")
    assert done.returncode == 1
    assert "0 of 3 ok, 3 failed" in done.stdout
    place = f"{project}/expensive_task.py:3"
    assert f"  3 failed: ValueError: no at {place} (jobs 0, 1, 2)\n" in done.stdout
    assert "job 0 (product 0) failed: ValueError: no" in done.stdout
    assert "raise ValueError('no')" in done.stdout, "the traceback of the first"
    hint = re.findall(r"\[see: postroom show (\w+/0 -b .+)\]", done.stdout)[0]
    logs = python(project, "-m", "postroom", "logs", *shlex.split(hint))
    assert logs.stdout == "printed by it\n"
    log = (project / "base" / "log" / "postroom.log").read_text()
    assert all(json.loads(line) for line in log.splitlines())


def test_a_kernel_that_crashes_the_worker_is_given_up_and_the_others_are_done(
    project: Path,
) -> None:
    (project / "expensive_task.py").write_text(
        dedent("""
        import ctypes, os
        def expensive_task(a, b):
            if os.environ["POSTROOM_JOB"].endswith("/2"):
                ctypes.string_at(0)
            return 1
        """)
    )
    done = python(project, "main.py", "--n-tasks", "6", "--size", "2")
    assert done.returncode == 1
    assert "5 of 6 ok, 1 failed" in done.stdout
    assert "job 2 (product 2) lost" in done.stdout and "SIGSEGV" in done.stdout


def test_64_mb_of_shared_data_are_loaded_once_per_session_for_200_jobs(project: Path) -> None:
    (project / "main.py").write_text(
        dedent("""
        import numpy as np
        from postroom import Job, Master
        from postroom.session.sessions import Sessions
        with Master("base") as master, Sessions(master.base, 2):
            shared = np.arange(1 << 23, dtype=np.float64)
            jobs = [Job("expensive_task:pick", n=n) for n in range(200)]
            assert master.run(jobs, shared).results() == [float(n) for n in range(200)]
        """)
    )
    (project / "expensive_task.py").write_text("def pick(n, shared):\n    return shared[n]\n")
    done = python(project, "main.py")
    assert done.returncode == 0, done.stderr
    loads = events(project / "base", "shared loaded")
    assert sorted(str(load["role"]) for load in loads) == ["worker 0", "worker 1"]
    assert {load["bytes"] for load in loads} == {64 << 20}


def test_ctrl_c_keeps_what_is_done_and_resume_does_the_rest(project: Path) -> None:
    (project / "expensive_task.py").write_text(SLOW)
    base = project / "base"
    with run_in_background(project, "main.py", "--n-tasks", "40", "--size", "2") as main:
        wait_until(lambda: results_of(base) >= 3, folder=base)
        main.send_signal(signal.SIGINT)
        _, words = main.communicate(timeout=60)
    assert main.returncode == 130
    assert "of 40 jobs are done and kept; resume with: python main.py --resume" in words
    kept = set(os.listdir(base / "result_pool" / the_run(base)))

    resumed = python(project, "main.py", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "40 of 40 ok" in resumed.stdout
    assert kept <= set(os.listdir(base / "result_pool" / the_run(base)))
    assert covered(base, the_run(base)) == list(range(40))


def test_failed_jobs_run_again_once_the_kernel_is_mended(project: Path) -> None:
    kernel = project / "expensive_task.py"
    kernel.write_text("def expensive_task(a, b):\n    assert a[0, 0] > 0\n    return 1\n")
    failed = python(project, "main.py", "--n-tasks", "20", "--size", "2")
    assert failed.returncode == 1
    again = re.findall(r"run the failed jobs again: python (main.py .*)", failed.stdout)[0]
    kernel.write_text("def expensive_task(a, b):\n    return 1\n")
    mended = python(project, *shlex.split(again))
    assert mended.returncode == 0, mended.stderr
    assert "20 of 20 ok, 0 failed" in mended.stdout
    nothing = python(project, "main.py", "--resume", "--failed")
    assert "is unfinished or has failed jobs" in nothing.stderr


def kill_worker(base: Base) -> None:
    os.kill(min(marked(mark_of(base.root, "0"))), signal.SIGKILL)


def kill_guardian(base: Base) -> None:
    card = json.loads(Path(base.agent_info("0")).read_text())
    os.kill(card["pid"], signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_worker, kill_guardian])
def test_killing_part_of_a_session_loses_and_doubles_nothing(
    project: Path, kill: Callable[[Base], None]
) -> None:
    (project / "expensive_task.py").write_text(SLOW)
    base = project / "base"
    with run_in_background(project, "main.py", "--n-tasks", "30", "--size", "2") as main:
        wait_until(lambda: results_of(base) >= 3, folder=base)
        kill(Base(base))
        output, words = main.communicate(timeout=60)
    assert main.returncode == 0, words
    assert "30 of 30 ok" in output
    assert covered(base, the_run(base)) == list(range(30))


def test_killing_the_master_with_9_leaves_a_run_that_resumes(project: Path) -> None:
    (project / "expensive_task.py").write_text(SLOW)
    base = project / "base"
    with run_in_background(project, "main.py", "--n-tasks", "30", "--size", "2") as main:
        wait_until(lambda: results_of(base) >= 3, folder=base)
        main.kill()
    # Its own agents end with it, however it ends.
    wait_until(lambda: not any(marked(mark_of(str(base), agent)) for agent in "01"), folder=base)
    resumed = python(project, "main.py", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert covered(base, the_run(base)) == list(range(30))


def test_a_standing_master_serves_what_others_hand_in(project: Path) -> None:
    start_agents(project, 1, "base")
    with run_in_background(project, "master.py", "base") as master:
        script = dedent("""
        from postroom import Job, Master
        with Master("base", import_folder=".") as m:
            m.submit_all([Job("expensive_task:expensive_task", n=n) for n in range(5)], keep=True)
        """)
        (project / "expensive_task.py").write_text("def expensive_task(n):\n    return n\n")
        assert python(project, "-c", script).returncode == 0
        base = project / "base"
        wait_until(lambda: covered(base, the_run(base)) == list(range(5)), folder=base)
        master.send_signal(signal.SIGTERM)
        _, words = master.communicate(timeout=60)
    assert master.returncode == 0
    assert "active" in words and "stopped" in words


def test_the_root_files_export_what_their_names_promise() -> None:
    script = (
        "from master import Master; from agent import Agent; from jobs import Job;"
        "import postroom; assert Master is postroom.Master and issubclass(Job, postroom.Job)"
    )
    assert python(ROOT, "-c", script).returncode == 0


def test_a_project_beside_the_package_never_replaces_its_modules(project: Path) -> None:
    """A user's own jobs.py and master.py must not be imported by the framework."""
    for name in ("jobs", "master", "agent", "files", "runs"):
        (project / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    script = "import postroom.master, postroom.jobs, postroom.session.worker"
    assert python(project, "-c", script).returncode == 0


def test_results_can_be_read_with_plain_numpy(project: Path) -> None:
    assert python(project, "main.py", "--n-tasks", "4", "--size", "8").returncode == 0
    base = project / "base"
    for pool in ("job_pool", "result_pool"):
        for path in (base / pool / the_run(base)).glob("*.npz"):
            with np.load(path) as parcel:
                assert parcel.files


def results_of(base: Path) -> int:
    return len(list(base.glob("result_pool/*/*.npz")))


def run_in_background(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
