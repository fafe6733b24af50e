"""`@postroom.job` across processes: real processes, really killed, on simulated cards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from postroom.gpus.cards import simulated
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.gpus.memory.profiles import Profiles
from postroom.queue.actions import kill
from postroom.queue.queue_view import QueueView
from postroom.store.base import open_base
from postroom.store.job_ids import JobId
from postroom.testing import wait_until

REPOSITORY = Path(__file__).parent.parent.parent

# What every script begins with: a job that takes memory, says so, and waits for its file to go.
HEAD = """
import os, sys, threading, time
from pathlib import Path
import postroom
from postroom.gpus.cards.simulated import Claim

folder = Path(sys.argv[1])

def seen(memory_mib):
    meter = next(t._target.__self__ for t in threading.enumerate() if t.name == "postroom meter")
    while meter.peak_mib < memory_mib:
        time.sleep(0.01)

def hold(name, memory_mib):
    with Claim(os.environ["POSTROOM_GPU"], memory_mib):
        seen(memory_mib)
        (folder / name).touch()
        while (folder / name).exists():
            time.sleep(0.01)
"""


class World:
    """A folder for scripts, their jobs' files, and the processes that were started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def script(self, source: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(HEAD + dedent(source))
        return path

    def start(self, script: Path, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(script), str(self.folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def wait_for(self, name: str, *, but: subprocess.Popen[str] | None = None) -> None:
        def there() -> bool:
            for process in self.started:
                if process is not but and process.poll() not in (None, 0):
                    assert process.stderr is not None
                    raise AssertionError(process.stderr.read())
            return (self.folder / name).exists()

        wait_until(there, what=f"job {name} running", folder=self.folder)

    def end(self, name: str) -> None:
        (self.folder / name).unlink()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (tmp_path / "cards").mkdir()
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path / "cards"))
    monkeypatch.setenv("POSTROOM_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G")
    monkeypatch.setenv("POSTROOM_BASE", str(tmp_path / "base"))
    opened = World(tmp_path)
    yield opened
    opened.close()


def reserved() -> list[int | None]:
    return [entry.memory_mib for entry in open_ledger().holders()]


KINDS = """
@postroom.job
def a(name):
    hold(name, 8000)

@postroom.job
def b(name):
    hold(name, 2000)

{"a": a, "b": b}[sys.argv[2]](sys.argv[3])
"""


def test_as_many_of_a_kind_are_measured_at_a_time_as_cards_are_idle_and_others_wait(
    world: World,
) -> None:
    script = world.script(KINDS)
    world.start(script, "a", "a1")
    world.wait_for("a1")
    world.start(script, "a", "a2")
    world.wait_for("a2")
    assert reserved() == [None, None]
    waiting = world.start(script, "b", "b1")
    wait_until(lambda: open_ledger().queue(), what="another kind waits for a card")
    assert waiting.poll() is None
    world.end("a1")
    world.wait_for("b1")
    world.end("a2")
    world.end("b1")
    assert [process.wait() for process in world.started] == [0, 0, 0]
    world.start(script, "a", "a3")
    world.start(script, "a", "a4")
    world.wait_for("a3")
    world.wait_for("a4")
    first, other = reserved()
    assert first == other
    assert first is not None
    assert 8000 < first < 8400
    world.end("a3")
    world.end("a4")


@pytest.mark.parametrize("death", ["kill", "failure"])
def test_a_first_run_that_dies_frees_its_card_and_the_next_one_measures(
    world: World, death: str
) -> None:
    script = world.script("""
        @postroom.job
        def train():
            name, fails = sys.argv[2:]
            hold(name, 8000)
            if fails == "failure":
                raise ValueError("on purpose")

        train()
    """)
    first = world.start(script, "one", death)
    world.wait_for("one")
    second = world.start(script, "two", "")
    if death == "kill":
        os.kill(first.pid, signal.SIGKILL)
    else:
        world.end("one")
    world.wait_for("two", but=first)
    assert reserved() == [None]  # it measures: nothing was learned from the first
    assert first.wait() != 0
    world.end("two")
    assert second.wait() == 0
    (profile,) = Profiles().all()
    assert [row.peak_mib for row in profile.rows] == [8000]
    with open_ledger().try_acquire(LeaseRequest(count=2)):
        pass


def test_foreign_use_counts_and_is_waited_for(world: World) -> None:
    script = world.script("""
        @postroom.job(memory="20G")
        def train():
            hold("it", 100)

        train()
    """)
    simulated.script(
        os.environ["POSTROOM_FAKE_GPUS_FOLDER"],
        {
            uuid: {"processes": [{"pid": 1, "user": "x", "command": "x", "used_mib": 8000}]}
            for uuid in ("FAKE-0", "FAKE-1")
        },
    )
    process = world.start(script)
    wait_until(lambda: open_ledger().queue(), what="the job waiting in line")
    assert process.stderr is not None
    assert "is used without a lease by user x" in process.stderr.readline()
    simulated.script(os.environ["POSTROOM_FAKE_GPUS_FOLDER"], {})
    world.wait_for("it")
    world.end("it")


def test_a_sweep_with_plain_multiprocessing_never_over_books(world: World) -> None:
    script = world.script("""
        import multiprocessing

        @postroom.job(policy="pack")
        def train(seed):
            with Claim(os.environ["POSTROOM_GPU"], 7000):
                seen(7000)
                return seed * seed

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(6) as pool:
                print(sum(pool.map(train, range(24), chunksize=1)))
    """)
    process = world.start(script)
    output, talk = process.communicate(timeout=100)
    # Simulated cards raise OutOfMemory where more is claimed than there is.
    assert process.returncode == 0, talk
    assert int(output) == sum(seed * seed for seed in range(24))


TRAINER = """
import postroom

class Trainer:
    def __init__(self, factor):
        self.factor = factor

    @postroom.job
    def train(self, x):
        return self.factor * x
"""


def test_a_script_hands_its_own_functions_to_sessions(world: World) -> None:
    script = world.script("""
        @postroom.job(retries=1)
        def train(x, power=2):
            if x < 0:
                raise ValueError("negative")
            return {"x": x**power, "gpu": os.environ["POSTROOM_GPU"], "pid": os.getpid()}

        if __name__ == "__main__":
            import json
            from trainer import Trainer
            futures = [train.submit(x) for x in range(6)]
            found = [future.result() for future in futures]
            found += train.map([1, 2], [3, 3])
            try:
                train.submit(-1).result()
            except ValueError as error:
                failed = f"{error}: {error.__cause__}"
            try:
                train.submit(1, 2, 3)
            except TypeError as error:
                refused = str(error)
            method = Trainer(3).train.submit(5).result()
            print(json.dumps([os.getpid(), found, failed, refused, method]))
    """)
    (world.folder / "trainer.py").write_text(TRAINER)
    process = world.start(script)
    output, talk = process.communicate(timeout=100)
    assert process.returncode == 0, talk
    pid, found, failed, refused, method = json.loads(output)
    assert [result["x"] for result in found] == [0, 1, 4, 9, 16, 25, 1, 8]
    assert {result["gpu"] for result in found} <= {"FAKE-0", "FAKE-1"}
    assert pid not in {result["pid"] for result in found}
    assert failed.startswith("negative: ")
    assert 'raise ValueError("negative")' in failed
    assert "too many positional arguments" in refused
    assert method == 15
    assert open_ledger().holders() == []  # the sessions ended with their script
    assert list((world.folder / "base" / "log" / "timelines").iterdir())


def test_a_script_needs_no_guard_since_no_session_imports_it(world: World) -> None:
    script = world.script("""
        FACTOR = 3

        @postroom.job
        def train(x):
            return FACTOR * x

        print(train.submit(2).result())
    """)
    process = world.start(script)
    output, talk = process.communicate(timeout=100)
    assert output == "6\n", talk


def test_under_a_lease_of_the_shell_above_it_a_call_waits_for_nobody(world: World) -> None:
    script = world.script("""
        @postroom.job
        def train():
            return os.environ.get("CUDA_VISIBLE_DEVICES")

        print(train())
    """)
    command = [sys.executable, "-m", "postroom", "gpu", "run", "--gpus", "1", "--"]
    done = subprocess.run(
        [*command, sys.executable, str(script), str(world.folder)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "1", done.stderr


MANY = """
@postroom.job
def wait_for(where, n):
    (Path(where) / f"began {n}").touch()
    while not (Path(where) / "go").exists():
        time.sleep(0.01)

if __name__ == "__main__":
    futures = [wait_for.submit(str(folder), n) for n in range(60)]
    print([future.result() for future in futures])
"""


def test_ctrl_c_cancels_what_waits_and_ends_what_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "")
    process = world.start(world.script(MANY))
    world.wait_for("began 0")
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    said = re.search(r"interrupted: cancelled (\d+) jobs that waited, ended (\d+) that ran", err)
    assert said is not None, err
    assert int(said[1]) + int(said[2]) == 60
    assert err.count("Traceback") == 1, err
    with QueueView(open_base(world.folder / "base")) as view:
        assert view.overview().counts == {"cancelled": 60}


def test_a_program_that_ends_says_that_it_waits_for_its_jobs_and_ctrl_c_ends_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "")
    process = world.start(
        world.script(MANY.replace("print([future.result() for future in futures])", ""))
    )
    assert process.stderr is not None
    said = next(line for line in process.stderr if "waiting for" in line)
    assert said == "postroom: waiting for 60 jobs; Ctrl-C ends them\n"
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert "interrupted: cancelled" in err
    assert "Traceback" not in err, err


def test_a_program_that_is_killed_leaves_jobs_that_are_shown_as_abandoned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "")
    process = world.start(world.script(MANY))
    world.wait_for("began 0")
    process.kill()
    process.wait()
    (world.folder / "go").touch()
    with QueueView(open_base(world.folder / "base")) as view:
        wait_until(lambda: not view.overview().agents, what="its sessions have ended")
        wait_until(lambda: view.overview().counts.keys() == {"ok", "abandoned"}, what="abandoned")
        jobs = [JobId(row.run, row.number) for row in view.jobs(state="abandoned", count=60).jobs]
        assert kill(view, jobs).text == f"killed {len(jobs)} jobs"
        counts = view.overview().counts
        assert counts["cancelled"] == len(jobs) > 0
        assert sum(counts.values()) == 60


@pytest.mark.slow
def test_the_example_trains_on_what_there_is(world: World) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "train.py")],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.1
    assert done.stderr.count("stand-in") == 1


def test_submitted_jobs_of_a_known_kind_share_a_card_and_an_unknown_one_has_it_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x24G")
    script = world.script(
        """
        @postroom.job(memory=os.environ.get("DECLARED"), type="kind")
        def train(where, name):
            with Claim(os.environ["POSTROOM_GPU"], 6000):
                (Path(where) / name).touch()
                while (Path(where) / name).exists():
                    time.sleep(0.01)
            return name

        if __name__ == "__main__":
            futures = [train.submit(str(folder), name) for name in ("a", "b")]
            print(*(future.result() for future in futures))
        """
    )
    monkeypatch.setenv("DECLARED", "6G")
    process = world.start(script)
    world.wait_for("a")
    world.wait_for("b")  # while the first still runs
    held = open_ledger().holders()
    assert sorted(entry.memory_mib or 0 for entry in held) == [6656, 6656]
    world.end("a")
    world.end("b")
    assert process.communicate(timeout=60)[0] == "a b\n"
    Profiles().forget("kind")
    monkeypatch.delenv("DECLARED")
    process = world.start(script)
    world.wait_for("a")
    (alone,) = open_ledger().holders()
    assert alone.memory_mib is None
    world.end("a")
    world.wait_for("b")
    world.end("b")
    assert process.communicate(timeout=60)[0] == "a b\n"


SWEEP = """
together = int(sys.argv[2])

def meet(number):
    # The first calls wait for each other: none of them ends unless all run at the same time.
    (folder / f"call {number}").write_text(os.environ["POSTROOM_GPU"])
    while number < together and len(list(folder.glob("call [0-9]"))) < together:
        time.sleep(0.01)
    return number

@postroom.job
def train(number):
    return meet(number)

print(sum(train.map(range(60))))
"""


@pytest.mark.parametrize("cards", ["4x24G", ""], ids=["four cards", "no card"])
def test_a_sweep_of_unknown_calls_uses_all_cards_at_once_or_all_cores(
    world: World, cards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", cards)
    monkeypatch.setenv("POSTROOM_PRELOAD", "numpy")
    together = 4 if cards else len(os.sched_getaffinity(0))
    program = world.start(world.script(SWEEP), str(together))
    out, said = program.communicate(timeout=200)
    assert (program.returncode, out) == (0, f"{sum(range(60))}\n"), said
    used = [(world.folder / f"call {n}").read_text() for n in range(together)]
    assert len(set(used)) == (4 if cards else 1)
    rows = [row for kind in Profiles().all() for row in kind.rows]
    assert bool(rows) is bool(cards), "without a card, nothing is measured"
