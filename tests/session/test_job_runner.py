"""How a worker has one job run: commands go to a minder, tasks use a scripted card."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.commands.attempt import AttemptEnd, CommandAttempt
from postroom.commands.spec import CommandSpec
from postroom.errors import OtherVersionError
from postroom.gpus.cards import inventory
from postroom.jobs import Job
from postroom.parcel.sheets import Failure, JobEnd, JobSheet, Outcome, pack_jobs
from postroom.session.gpu_sharing import GpuSharing
from postroom.session.inbox import TryAgain
from postroom.session.job_runner import JobRunner
from postroom.session.tasks import CACHE_IDLE_S, SHARED_IDLE_S
from postroom.store.base import create_base
from postroom.store.edited_jobs import write_edited
from postroom.store.files import LocalFiles
from postroom.store.journal import NullJournal
from postroom.store.runs import Note, write_note
from tests.by_hand import info
from tests.in_one_process import InOneProcess, in_one_process

FAILURE = Failure(Outcome.FAILED, "failed", "exit code 3", "stderr")


class Minder:
    """Ends each attempt as it is told to."""

    def __init__(self, end: AttemptEnd | None) -> None:
        self.end = end
        self.attempts: list[CommandAttempt] = []

    def run(self, attempt: CommandAttempt, lingers: Callable[[], None]) -> AttemptEnd | None:
        self.attempts.append(attempt)
        lingers()
        return self.end


class Turn:
    failed = 1
    lingered = 0

    def linger(self) -> None:
        self.lingered += 1


def run(tmp_path: Path, job: Job, minder: Minder, edited: Job | None = None) -> JobEnd | None:
    class Guardian:
        def say(self, **fields: Any) -> None:
            raise AssertionError("a command's time limit is its minder's to keep")

    def packed(job: Job) -> bytes:
        names = [job.name] if job.name else None
        return b"".join(map(bytes, pack_jobs(0, job.task, job.settings, names, [job.arguments])))

    settings = {"gpu": "cpu", "gpu_name": "CPU"}
    base = create_base(tmp_path / "base")
    runner = JobRunner(LocalFiles(), base, settings, Guardian(), NullJournal(), minder.run)
    runner.turn = turn = Turn()
    if edited is not None:
        os.mkdir(base.run_folder("r"))
        write_edited(LocalFiles(), base, "r", 0, packed(edited))
    queued = info(queue=True)
    done = runner.run_job(queued, JobSheet("parcel", packed(job)), 0, 2)
    assert turn.lingered == len(minder.attempts)
    return done


def test_a_command_goes_to_the_minder_with_all_that_is_asked(tmp_path: Path) -> None:
    spec = CommandSpec("true", "one", "/", timeout_s=5.0, retries=2)
    minder = Minder(None)
    assert run(tmp_path, spec.to_job(), minder) is None
    folder = create_base(tmp_path / "base").job_folder("r", 0)
    assert minder.attempts == [CommandAttempt(spec.but(folder=folder), "r", 0, 2, 1)]


def test_a_command_that_was_edited_runs_as_it_is_now(tmp_path: Path) -> None:
    before, now = CommandSpec("true", "one", "/"), CommandSpec("false", "two", "/", timeout_s=5.0)
    minder = Minder(None)
    run(tmp_path, before.to_job(), minder, now.to_job())
    (attempt,) = minder.attempts
    assert (attempt.spec.command, attempt.spec.name, attempt.spec.timeout_s) == ("false", "two", 5)


def test_a_folder_that_is_asked_for_is_kept(tmp_path: Path) -> None:
    minder = Minder(None)
    run(tmp_path, CommandSpec("true", cwd="/", folder="/out/job_1").to_job(), minder)
    assert minder.attempts[0].spec.folder == "/out/job_1"


def test_an_end_that_is_not_published_yet_is_returned(tmp_path: Path) -> None:
    done = JobEnd({"exit": 0})
    assert run(tmp_path, CommandSpec("true", cwd="/").to_job(), Minder(AttemptEnd(done))) is done


def test_a_failure_with_retries_left_is_noted_by_the_inbox(tmp_path: Path) -> None:
    minder = Minder(AttemptEnd(JobEnd(failure=FAILURE), "failed"))
    with pytest.raises(TryAgain, match="failed: exit code 3") as error:
        run(tmp_path, CommandSpec("true", cwd="/").to_job(), minder)
    assert (error.value.kind, error.value.traceback) == ("failed", "stderr")


@pytest.mark.parametrize(
    ("reason", "alone"),
    [("OutOfMemoryError: CUDA out of memory. Tried to allocate", True), ("ValueError: no", False)],
)
def test_a_task_that_ran_out_of_gpu_memory_is_retried_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, alone: bool
) -> None:
    base, files = create_base(tmp_path / "base"), LocalFiles()
    job, had_alone = Job("kernels:x"), []
    files.make_folder(base.attempts(info().run))
    write_note(files, base, Note(info().run, 0, 1, "failed", "0", reason, 0.0))
    data = b"".join(map(bytes, pack_jobs(0, job.task, job.settings, None, [job.arguments])))
    guardian: Any = None
    runner = JobRunner(files, base, {"gpu": "GPU-x"}, guardian, NullJournal(), Minder(None).run)
    sharing = runner.sharing
    assert sharing is not None

    def run(*_: Any) -> JobEnd:
        had_alone.append(not sharing.inside)
        return JobEnd(1)

    monkeypatch.setattr(runner, "_run", run)
    runner.run_job(info(), JobSheet("parcel", data), 0, 2)
    assert had_alone == [alone]


def test_a_job_without_a_command_fails_and_goes_to_no_minder(tmp_path: Path) -> None:
    job = CommandSpec("true").to_job()
    del job.arguments["command"]
    minder = Minder(None)
    done = run(tmp_path, job, minder)
    assert done is not None and done.failure is not None
    assert "command" in done.failure.message
    assert minder.attempts == []


def test_a_command_of_another_version_goes_to_no_minder(tmp_path: Path) -> None:
    minder = Minder(None)
    job = CommandSpec("true", cwd="/").to_job()
    job.arguments["colour"] = "red"
    with pytest.raises(OtherVersionError, match="asks for 'colour'"):
        run(tmp_path, job, minder)
    base = create_base(tmp_path / "base")
    name = "0" * 32
    path = Path(base.environment("r", name))
    path.parent.mkdir()
    path.write_text('{"version": 2}')
    with pytest.raises(OtherVersionError, match="environment of a job of version 2"):
        run(tmp_path, CommandSpec("true", cwd="/", environment=name).to_job(), minder)
    assert minder.attempts == []


KERNELS = """
import numpy as np
from postroom.testing import scripted_device

KEPT = []

def double(x):
    return {"x": scripted_device().launch(np.multiply, x, 2)}

def poison():
    scripted_device().fail_later()
    return 1.0

def poison_and_raise():
    scripted_device().fail_later()
    raise ValueError("its own words")

def run_out():
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 GiB")

def total(shared: "torch.Tensor"):
    return float(shared.sum())

def cache(mib, fails=False):
    scripted_device().hold(mib)
    if fails:
        raise ValueError("no")

def keep(mib):
    KEPT.append(scripted_device().hold(mib))
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InOneProcess]:
    (tmp_path / "cards").mkdir()
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path / "cards"))
    monkeypatch.setenv("POSTROOM_FAKE_DEVICE", "context_mib=100")
    before = os.getcwd()
    with in_one_process(tmp_path, KERNELS, gpu="FAKE-0") as opened:
        yield opened
    os.chdir(before)
    sys.modules.pop("kernels", None)


def used_mib() -> int:
    return (inventory.find("0").used_mib or 0) - 100


def test_a_job_ends_when_its_work_on_the_card_has_and_its_results_are_on_the_host(
    room: InOneProcess,
) -> None:
    pool = room.run([Job("kernels:double", x=n) for n in range(3)]).raise_for_failed()
    assert pool.results() == [{"x": 0}, {"x": 2}, {"x": 4}]


def test_an_error_that_surfaces_late_is_that_jobs_own_and_costs_its_worker(
    room: InOneProcess,
) -> None:
    pool = room.run([Job("kernels:double", x=1), Job("kernels:poison")])
    assert pool[0].result() == {"x": 2}
    assert "device-side assert" in str(pool[1].error)
    assert "CUDA_LAUNCH_BLOCKING=1" in str(pool[1].error)
    (runner,) = room.runners
    assert runner.broken_context and "context on the GPU unusable" in runner.used_up


def test_a_job_that_breaks_its_context_keeps_its_own_traceback(room: InOneProcess) -> None:
    failure = room.run([Job("kernels:poison_and_raise")])[0].done.failure
    assert failure is not None
    assert 'raise ValueError("its own words")' in failure.traceback


def test_a_job_is_not_blamed_when_the_driver_reports_a_problem_of_the_card(
    room: InOneProcess,
) -> None:
    (runner,) = room.runners
    said: list[dict[str, Any]] = []

    class Sick:
        def say(self, **fields: Any) -> None:
            said.append(fields)

        def card_problem(self) -> str:
            return "the driver reported Xid 79"

    runner._guardian = Sick()
    with pytest.raises(SystemExit):
        room.run([Job("kernels:poison")])
    assert "device-side assert" in said[-1]["touch_failed"] and not said[-1]["first"]


def test_memory_is_given_back_after_a_failure_and_when_the_run_changes(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.run([Job("kernels:cache", mib=2000)]).raise_for_failed()
    assert used_mib() == 2000, "within a run it stays warm"
    assert len(room.run([Job("kernels:cache", mib=3000, fails=True)]).failures()) == 1
    assert used_mib() == 0
    room.run([Job("kernels:cache", mib=2000)]).raise_for_failed()
    monkeypatch.setattr("postroom.session.tasks.FREE_EVERY_S", 0.0)
    room.run([Job("kernels:double", x=1)]).raise_for_failed()
    assert used_mib() == 0


def test_memory_is_given_back_before_a_command_for_a_neighbour_and_after_an_idle_while(
    room: InOneProcess,
) -> None:
    (runner,) = room.runners

    def run_command() -> None:
        room.run([CommandSpec("true", cwd="/").to_job()])

    def leave() -> None:
        assert runner.sharing is not None
        neighbour = GpuSharing(room.base, "FAKE-0")
        runner.sharing.leave_idle()
        del neighbour

    for give_back in (run_command, leave, lambda: runner.idle(CACHE_IDLE_S)):
        room.run([Job("kernels:cache", mib=2000)]).raise_for_failed()
        assert used_mib() == 2000
        give_back()
        assert used_mib() == 0


def test_shared_data_is_dropped_when_nobody_has_used_it_for_a_while_and_before_a_command(
    room: InOneProcess,
) -> None:
    pytest.importorskip("torch")
    (tasks,) = room.tasks
    data = np.ones(3 << 20)

    def use() -> None:
        room.run([Job("kernels:total")], data).raise_for_failed()
        assert used_mib() == 24

    use()
    tasks.idle(SHARED_IDLE_S)
    assert used_mib() == 24, "it was used just now"
    tasks._shared_used_at -= SHARED_IDLE_S
    tasks.idle(SHARED_IDLE_S - 1)
    assert used_mib() == 24, "there was another job just now"
    tasks.idle(SHARED_IDLE_S)
    assert used_mib() == 0
    use()
    room.run([CommandSpec("true", cwd="/").to_job()])
    assert used_mib() == 0
    use()


def test_a_worker_with_memory_in_use_is_replaced_when_a_job_ran_out(room: InOneProcess) -> None:
    room.run([Job("kernels:run_out")])
    (runner,) = room.runners
    assert not runner.used_up, "nothing stays in use, so a new worker would not help"
    room.run([Job("kernels:keep", mib=1000)])
    room.run([Job("kernels:run_out")])
    assert runner.used_up == "a job ran out of memory, and 1000 MiB stay in use"


def test_the_globals_of_an_edited_kernel_are_gone_at_once(room: InOneProcess) -> None:
    room.run([Job("kernels:keep", mib=4000)]).raise_for_failed()
    assert used_mib() == 4000
    room.write_kernels(KERNELS + "# edited")
    room.run([Job("kernels:double", x=1)]).raise_for_failed()
    assert used_mib() == 0
