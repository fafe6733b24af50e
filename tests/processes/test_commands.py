"""`postroom run` as it is used: real shells, real kills, and a folder that tells the truth."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from postroom.parcel.sheets import OutcomeSheet
from postroom.store.base import open_base
from postroom.store.files import LocalFiles
from postroom.store.runs import list_firsts, list_runs, read_notes
from postroom.system import cgroups
from postroom.system.own_python import PACKAGE_PARENT
from postroom.system.process_tree import mark_of, sweep
from postroom.testing import wait_until
from tests.groups import needs_groups

FILES = LocalFiles()


class Bench:
    """A folder in which `postroom run` is called, and what it has left there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "out"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, gpus: str = "0,1", **options: object) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "postroom", "run", *arguments, "--output-dir", "out"]
        words += ["--gpus", gpus] if gpus else []
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": PACKAGE_PARENT},
            stdin=options.get("stdin", subprocess.DEVNULL),  # type: ignore[call-overload]
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, gpus: str = "0,1") -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, gpus=gpus)
        out, err = process.communicate(timeout=100)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def jobs(self, *lines: str) -> str:
        (self.folder / "jobs.txt").write_text("".join(f"{line}\n" for line in lines))
        return "jobs.txt"

    def having(self, name: str) -> list[str]:
        """The job folders that hold a file of that name."""
        found = [path.parent.name for path in self.output.glob(f"*/{name}")]
        return sorted(found, key=lambda text: (len(text), text))

    def read(self, job: str, end: str = "OUT") -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.output / job / f"{job}.{end}").read_text()
        return ""

    def outcomes(self) -> list[str]:
        """How every job of the base ended, each one once."""
        base = open_base(self.output / ".base")
        found: dict[int, str] = {}
        for run in list_runs(FILES, base):
            for first in list_firsts(FILES, base.result_folder(run)):
                path = base.result(run, first)
                sheet = OutcomeSheet(path, Path(path).read_bytes())
                for job in range(first, first + sheet.count):
                    assert job not in found, "a job was covered twice"
                    failure = sheet.done(job).failure
                    found[job] = failure.outcome.value if failure else "ok"
        return [found[job] for job in sorted(found)]

    def notes(self) -> list[str]:
        base = open_base(self.output / ".base")
        return [n.kind for run in list_runs(FILES, base) for n in read_notes(FILES, base, run)]

    def guardian(self, process: subprocess.Popen[str]) -> psutil.Process:
        (found,) = psutil.Process(process.pid).children()
        return found

    def minder(self, process: subprocess.Popen[str]) -> psutil.Process:
        """The child of a guardian, which is worker and minder in one."""
        (found,) = self.guardian(process).children()
        return found

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                for each in [*psutil.Process(process.pid).children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                process.kill()
            process.communicate()
        for agent in ("0", "1", "2", "0b", "cpu", "0-1"):
            mark = mark_of(str(self.output / ".base"), agent)
            sweep(mark)
            cgroups.end(cgroups.path_of(mark), mark)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path)
    yield opened
    opened.close()


def living(token: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                if any(word.startswith(token.encode()) for word in file.read().split(b"\0")):
                    found.append(int(name))
    return found


def test_every_line_has_its_folder_and_its_outcome(bench: Bench) -> None:
    done = bench.run(
        bench.jobs("echo $SGE_TASK_ID $POSTROOM_GPU", "# no", "", "echo x | cat && exit 3")
    )
    assert done.returncode == 1
    assert bench.having("SUCCESS") == ["job_1"]
    assert bench.having("FAILURE") == ["job_2"]
    assert bench.read("job_1") in ("1 FAKE-0\n", "1 FAKE-1\n")
    assert bench.read("job_2") == "x\n"
    assert "exit code 3" in done.stderr
    assert "run failed jobs again: postroom run jobs.txt" in done.stderr
    rows = json.loads((bench.output / "results.json").read_text())
    assert [(row["name"], row["outcome"], row["exit"]) for row in rows] == [
        ("job_1", "ok", 0),
        ("job_2", "failed", 3),
    ]
    assert "job_2,failed,3" in (bench.output / "results.csv").read_text()


def test_repeated_it_runs_only_what_failed_is_missing_or_new(bench: Bench) -> None:
    flag = bench.folder / "flag"
    count = f"echo x >> {bench.folder}/count_"
    bench.run(bench.jobs(f"{count}a", f"{count}b; test -e {flag}", f"{count}c"))
    flag.touch()
    again = bench.run(bench.jobs(f"{count}d", f"{count}c", f"{count}b; test -e {flag}"))
    assert again.returncode == 0
    assert "2 ok, 0 failed, 1 done before" in again.stderr
    runs = {name: (bench.folder / f"count_{name}").read_text().count("x") for name in "abcd"}
    assert runs == {"a": 1, "b": 2, "c": 1, "d": 1}
    assert bench.having("SUCCESS") == ["job_1", "job_2", "job_3", "job_4"]
    assert bench.having("FAILURE") == []
    assert (bench.output / "job_2" / "attempts" / "1" / "FAILURE").exists()
    assert "attempt:  2" in (bench.output / "job_2" / "INFO").read_text()


def test_the_same_line_many_times_is_many_jobs_and_each_is_done_once(bench: Bench) -> None:
    lines = bench.jobs(*["true"] * 7)
    assert bench.run(lines).returncode == 0
    assert len(bench.having("SUCCESS")) == 7
    assert "0 ok, 0 failed, 7 done before" in bench.run(lines).stderr


def test_reports_keep_the_order_of_lines_and_all_can_be_run_again(bench: Bench) -> None:
    go = bench.folder / "go"
    lines = bench.jobs(f"until test -e {go}; do sleep 0.02; done; nice", f"touch {go}; nice")
    for attempt in (1, 2):
        done = bench.run(lines, "--keep-order", "--nice", "5", "--rerun", "all", gpus="2xcpu")
        assert done.returncode == 0, done.stderr
        reports = [line for line in done.stderr.splitlines() if line.startswith("job_")]
        assert [line.split()[0] for line in reports] == ["job_1", "job_2"]
        assert bench.read("job_1") == f"{min(os.nice(0) + 5, 19)}\n"
        assert f"attempt:  {attempt}" in (bench.output / "job_2" / "INFO").read_text()
    assert bench.having("SUCCESS") == ["job_1", "job_2"]


def test_when_every_line_fails_it_stops_after_as_many_as_it_may(bench: Bench) -> None:
    done = bench.run(bench.jobs(*["false"] * 30), "--stop-after-failures", "5")
    assert done.returncode == 1
    assert len(bench.having("FAILURE")) == 5
    assert "stopped after 5 failures" in done.stderr


def test_a_slow_yielder_whose_end_is_an_error_loses_nothing_that_was_fed(bench: Bench) -> None:
    (bench.folder / "feed.py").write_text(
        "import time\n"
        "def yielder():\n"
        "    yield dict(command='echo one $A', name='first', env={'A': 5})\n"
        "    time.sleep(7)\n"
        "    yield 'echo two'\n"
        "    raise RuntimeError('out of ideas')\n"
    )
    done = bench.run("--yielder", "feed.py")
    assert done.returncode == 1
    assert bench.having("SUCCESS") == ["first", "job_1"] or len(bench.having("SUCCESS")) == 2
    assert bench.read("first") == "one 5\n"
    assert "2 ok, 0 failed" in done.stderr
    assert "RuntimeError: out of ideas" in done.stderr


def test_standard_input_is_run_while_it_is_open(bench: Bench) -> None:
    process = bench.start("-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("echo first\n")
    process.stdin.flush()
    wait_until(lambda: bench.having("SUCCESS") == ["job_1"], folder=bench.folder)
    process.stdin.write("echo second\n")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert bench.having("SUCCESS") == ["job_1", "job_2"]


def test_killed_in_the_middle_and_repeated_each_job_succeeds_once(bench: Bench) -> None:
    log = bench.folder / "log"
    lines = bench.jobs(*(f"echo {n} >> {log}; sleep 0.01" for n in range(200)))
    process = bench.start(lines)
    wait_until(lambda: len(bench.having("SUCCESS")) >= 50, folder=bench.folder)
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in everyone:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.communicate()
    finished = len(bench.outcomes())
    again = bench.run(lines)
    assert again.returncode == 0, again.stderr
    assert len(bench.having("SUCCESS")) == 200
    assert bench.having("FAILURE") == []
    assert bench.outcomes() == ["ok"] * 200
    begun = sorted(map(int, log.read_text().split()))
    assert sorted(set(begun)) == list(range(200))
    # Only what was in a hand when everything died has run twice: one for each slot.
    assert len(begun) <= 202
    assert f"{200 - finished} ok" in again.stderr


def test_a_command_outlives_guardian_and_master_and_is_recorded_once(bench: Bench) -> None:
    go, log = bench.folder / "go", bench.folder / "log"
    lines = bench.jobs(f"echo begun >> {log}; until test -e {go}; do sleep 0.02; done; echo end")
    process = bench.start(lines, gpus="0")
    wait_until(log.exists, folder=bench.folder)
    guardian, minder = bench.guardian(process), bench.minder(process)
    guardian.kill()
    process.kill()
    process.communicate()
    assert minder.is_running()
    again = bench.start(lines, gpus="0")
    wait_until(lambda: bool(psutil.Process(again.pid).children()), what="the new guardian")
    assert minder.is_running()
    go.touch()
    _, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert log.read_text() == "begun\n"
    assert bench.read("job_1") == "end\n"
    assert bench.having("SUCCESS") == ["job_1"]
    assert bench.outcomes() == ["ok"]
    assert bench.notes() == []


def test_a_call_that_waits_for_a_survivor_ends_it_when_it_is_stopped(bench: Bench) -> None:
    token = f"stray-{uuid.uuid4().hex}"
    lines = bench.jobs(f"exec -a {token} sleep 600")
    process = bench.start(lines, gpus="0")
    wait_until(lambda: living(token), folder=bench.folder)
    guardian = bench.guardian(process)
    guardian.kill()
    process.kill()
    process.communicate()
    assert living(token) != []
    again = bench.start(lines, gpus="0")
    words = bench.output / ".base" / "log" / "session-0.txt"
    wait_until(lambda: "outlived" in words.read_text(), folder=bench.folder)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=60)
    assert again.returncode == 130
    assert living(token) == []
    assert bench.outcomes() == []
    assert bench.notes() == []


@needs_groups
def test_not_even_a_process_without_parent_and_mark_outlives_its_session(bench: Bench) -> None:
    token = f"stray-{uuid.uuid4().hex}"
    hides = f"(env -i setsid bash -c 'exec -a {token} sleep 600' &)"
    process = bench.start(bench.jobs(f"test $POSTROOM_ATTEMPT = 2 || {{ {hides}; sleep 600; }}"))
    wait_until(lambda: living(token), folder=bench.folder)
    mine = psutil.Process(process.pid).children(recursive=True)
    ours = [each for each in mine if "python" in each.name()]
    for each in [psutil.Process(process.pid), *ours]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.communicate()
    assert living(token), "nobody is left who could have ended it"
    again = bench.run("jobs.txt")
    assert again.returncode == 0, again.stderr
    assert living(token) == []
    assert bench.outcomes() == ["ok"]


def test_a_killed_minder_costs_an_attempt_and_its_stray_is_ended(bench: Bench) -> None:
    token = f"stray-{uuid.uuid4().hex}"
    line = f"test $POSTROOM_ATTEMPT = 2 || (exec -a {token} sleep 600); echo over"
    process = bench.start(bench.jobs(line), gpus="0")
    (stray,) = wait_until(lambda: living(token), folder=bench.folder)
    bench.minder(process).kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert living(token) == []
    assert not psutil.pid_exists(stray)
    assert bench.notes() == ["lost"]
    assert bench.outcomes() == ["ok"]
    assert bench.read("job_1") == "over\n"


@pytest.mark.parametrize("how", ["Ctrl-C", "kill -9"])
def test_stopped_it_leaves_nothing_running_and_blames_nobody(bench: Bench, how: str) -> None:
    token = f"stray-{uuid.uuid4().hex}"
    line = f"(setsid bash -c 'exec -a {token}-far sleep 600' &) ; exec -a {token} sleep 600"
    lines = bench.jobs("echo quick", line)
    process = bench.start(lines, "--grace", "0.5", gpus="0")
    wait_until(lambda: len(living(token)) == 2, folder=bench.folder)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    wait_until(lambda: living(token) == [], what="the end of the tree")
    wait_until(lambda: not any(child.is_running() for child in children), what="the last process")
    if how == "Ctrl-C":
        assert process.returncode == 130
        assert "continue with: postroom run jobs.txt" in said
    assert bench.having("SUCCESS") == ["job_1"]
    assert bench.having("FAILURE") == []
    assert bench.notes() == []
    assert bench.outcomes() == ["ok"]


def test_past_its_time_a_job_that_double_forked_is_all_gone(bench: Bench) -> None:
    token = f"stray-{uuid.uuid4().hex}"
    line = (
        f"(setsid bash -c 'exec -a {token}-far sleep 600' &) ; trap '' TERM; sleep 600; sleep 600"
    )
    done = bench.run(bench.jobs(line), "--timeout", "0.5", "--grace", "0.2", gpus="0")
    assert done.returncode == 1
    assert "timed out" in done.stderr
    assert living(token) == []


def test_retries_go_on_until_it_works_and_lines_that_are_dropped_do_not_run(bench: Bench) -> None:
    done = bench.run(bench.jobs("test $POSTROOM_ATTEMPT = 3"), "--retries", "2", gpus="cpu")
    assert done.returncode == 0, done.stderr
    assert bench.notes() == ["failed", "failed"]
    first = bench.start(bench.jobs("sleep 600", "touch unwanted"), gpus="cpu")
    wait_until(lambda: "sleep" in str([p.cmdline() for p in _tree(first)]), what="the sleeper")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert bench.run(bench.jobs("touch wanted"), gpus="cpu").returncode == 0
    assert (bench.folder / "wanted").exists()
    assert not (bench.folder / "unwanted").exists()


def _tree(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.cmdline()
            found.append(child)
    return found


def test_slots_come_and_go_with_the_file_of_gpus(bench: Bench) -> None:
    (bench.folder / "gpus").write_text("0\n")
    go = bench.folder / "go"
    hold = f"echo $POSTROOM_GPU; until test -e {go}; do sleep 0.02; done"
    lines = bench.jobs(hold, hold + "; true", hold + "; :")
    process = bench.start(lines, "--gpu-file", "gpus", gpus="")
    wait_until(lambda: bench.read("job_1") == "FAKE-0\n", folder=bench.folder)
    (bench.folder / "gpus").write_text("1,2\n")
    wait_until(lambda: bench.read("job_2") and bench.read("job_3"), folder=bench.folder)
    go.touch()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert {bench.read("job_2"), bench.read("job_3")} == {"FAKE-1\n", "FAKE-2\n"}
    assert len(bench.having("SUCCESS")) == 3


def test_a_slot_that_waits_for_its_card_says_who_has_it(bench: Bench) -> None:
    go = bench.folder / "go"
    first = bench.start("-c", f"until test -e {go}; do sleep 0.02; done", gpus="0")
    wait_until(lambda: list(bench.output.glob("job_1/INFO")), folder=bench.folder)
    words = [sys.executable, "-m", "postroom", "run", "-c", "true", "--gpus", "0"]
    second = subprocess.Popen(
        [*words, "--output-dir", "second"],
        cwd=bench.folder,
        env={**os.environ, "PYTHONPATH": PACKAGE_PARENT},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    bench.started.append(second)
    assert second.stderr is not None
    said = second.stderr.readline()
    assert "slot 0 is not ready yet" in said and "waiting for GPU 0" in said
    go.touch()
    assert second.wait(60) == 0
    assert first.wait(60) == 0


def test_jobs_run_in_the_snapshot_and_diff_shows_what_has_changed(bench: Bench) -> None:
    (bench.folder / "code.sh").write_text("echo old\n")
    go = bench.folder / "go"
    wait = f"until test -e {go}; do sleep 0.02; done"
    process = bench.start("-c", f"echo on; {wait}; bash code.sh", "--snapshot", gpus="0,1;")
    wait_until(lambda: bench.read("job_1") == "on\n", folder=bench.folder)
    (bench.folder / "code.sh").write_text("echo new\n")
    go.touch()
    process.communicate(timeout=60)
    assert bench.read("job_1") == "on\nold\n"
    assert "gpu:      GPU 0+1" in (bench.output / "job_1" / "INFO").read_text()
    diff = subprocess.run(
        [sys.executable, "-m", "postroom", "diff", "out/job_1"],
        cwd=bench.folder,
        env={**os.environ, "PYTHONPATH": PACKAGE_PARENT},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "-echo old\n+echo new\n" in diff.stdout


def test_each_job_sees_the_snapshot_as_it_was_taken_and_keeps_what_it_writes(
    bench: Bench,
) -> None:
    (bench.folder / "sub").mkdir()
    (bench.folder / "sub" / "code.sh").write_text("echo old\n")
    line = "cd sub; cat code.sh; echo echo changed >> code.sh; echo $POSTROOM_JOB > model"
    lines = bench.jobs(*[line] * 6, f"cat sub/code.sh; test $POSTROOM_SOURCE = {bench.folder}")
    assert bench.run(lines, "--snapshot").returncode == 0
    again = bench.run("-c", "cat sub/code.sh; false", "--snapshot", "--retries", "1")
    assert again.returncode == 1
    for number in range(1, 9):
        assert bench.read(f"job_{number}") == "echo old\n"
    for number in range(1, 7):
        copy = bench.output / f"job_{number}" / "snapshot"
        assert sorted(path.name for path in copy.rglob("*")) == ["code.sh", "model", "sub"]
    assert len({path.read_text() for path in bench.output.glob("*/snapshot/sub/model")}) == 6
    assert not (bench.output / "job_7" / "snapshot").exists()
    assert (bench.output / "job_8" / "attempts" / "1" / "INFO").exists()
    assert (bench.folder / "sub" / "code.sh").read_text() == "echo old\n"


def test_jobs_have_the_environment_and_the_umask_of_the_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "by the shell")
    lines = bench.jobs("echo $GIVEN > model; umask")
    before = os.umask(0o027)
    try:
        assert bench.run(lines, gpus="cpu").returncode == 0
        assert bench.run(lines, "--rerun", "all", gpus="2xcpu").returncode == 0
    finally:
        os.umask(before)
    assert bench.read("job_1") == "0027\n"
    assert (bench.folder / "model").read_text() == "by the shell\n"
    for path in (bench.folder / "model", bench.output / "job_1" / "job_1.OUT"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_runner_of_ones_own_changes_lines_and_hears_of_their_end(bench: Bench) -> None:
    (bench.folder / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from postroom.batch.runner import Runner\n"
        "class Mine(Runner):\n"
        "    def prepare(self, line):\n"
        "        if 'skip' in line.command: return None\n"
        "        return replace(line, command=line.command + ' more')\n"
        "    def finished(self, job, folder):\n"
        "        open('heard', 'a').write(folder.name)\n"
    )
    lines = bench.jobs("echo one", "echo skip")
    done = bench.run(
        lines, "--runner", "mine.py", "--before", "echo b", "--after", "echo a", gpus="cpu"
    )
    assert done.returncode == 0, done.stderr
    assert bench.read("job_1") == "b\none more\na\n"
    assert (bench.folder / "heard").read_text() == "job_1"


def test_detached_it_goes_on_and_can_be_looked_at(bench: Bench) -> None:
    go = bench.folder / "go"
    wait = f"until test -e {go}; do sleep 0.02; done"
    done = bench.run("-c", f"{wait}; echo over", "-c", "false", "--detach", gpus="2xcpu")
    assert done.returncode == 0
    pid = int(done.stdout.split("pid ")[1].split(";")[0])
    detached = psutil.Process(pid)
    try:
        wait_until(lambda: bench.having("FAILURE") == ["job_2"], folder=bench.folder)
        shown = _postroom(bench, "attach", "out", "--once")
        assert "1 done, 1 failed, 1 running, 0 waiting" in shown.stdout
        go.touch()
        assert _postroom(bench, "attach", "out").returncode == 1
        wait_until(lambda: not detached.is_running(), what="the end of the batch")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            detached.kill()
    assert bench.read("job_1") == "over\n"
    assert "1 ok, 1 failed" in (bench.output / "run.log").read_text()


def test_a_sweep_and_its_table(bench: Bench) -> None:
    words = ["sweep", "echo loss: $(({a} * {b}))", "a=1,2", "b=3:5", "--where", "a*b != 8"]
    dry = _postroom(bench, *words, "--dry-run")
    assert dry.stdout.splitlines()[-1] == "echo loss: $((2 * 5))"
    assert len(dry.stdout.splitlines()) == 5
    done = _postroom(bench, *words, "--gpus", "2xcpu", "--output-dir", "out")
    assert done.returncode == 0, done.stderr
    table = _postroom(bench, "table", "out", "--pattern", "loss: (.*)", "--json")
    rows = json.loads(table.stdout)
    assert [(row["a"], row["b"], row["loss"]) for row in rows] == [
        (1, 3, 3),
        (1, 4, 4),
        (1, 5, 5),
        (2, 3, 6),
        (2, 5, 10),
    ]


def _postroom(bench: Bench, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroom", *words],
        cwd=bench.folder,
        env={**os.environ, "PYTHONPATH": PACKAGE_PARENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
