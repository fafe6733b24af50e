"""What kernels print in real sessions, and the traceback of those that fail."""

from __future__ import annotations

from pathlib import Path

from postroom import Job
from postroom.parcel.sheets import Outcome
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId, find_run
from postroom.testing import RealSessions
from tests.cli.kit import call


def test_what_a_kernel_prints_belongs_to_its_job(sessions: RealSessions) -> None:
    sessions.start()
    with sessions.master() as master:
        ends = ["", "raise", "child"]
        jobs = [Job("kernels:talk", word=f"w{n}", end=end) for n, end in enumerate(ends)]
        pool = master.run([*jobs, Job("kernels:double", x=2)])
        for number in range(2):
            said = f"printed w{number}\nhalf a line and logged w{number}\n"
            assert pool.output(number) == said
        assert "from a child\n" in pool[2].output
        assert pool.output(-1) == ""
        (failure,) = pool.failures()
        job = JobId(pool.run, 1).short
        assert f"ValueError: w1 [see: postroom show {job} -b {sessions.base.root}]" in str(failure)
    shown = call(sessions.base, "show", job).stdout
    assert "raise ValueError(word)\n  ValueError: w1\n" in shown
    assert f"output: postroom logs {job};  run it again: postroom rerun {job}" in shown
    logs = call(sessions.base, "logs", job)
    assert logs.stdout == "printed w1\nhalf a line and logged w1\n"
    assert f"traceback: postroom show {job}" in logs.stderr
    assert call(sessions.base, "logs", job, "--err").stdout == "half a line and logged w1\n"
    assert call(sessions.base, "logs", job, "-f", "-n", "1").stdout.startswith("half a line")


def test_what_a_job_printed_survives_the_death_of_its_worker(sessions: RealSessions) -> None:
    sessions.start()
    with sessions.master() as master:
        pool = master.run([Job("kernels:talk", word="w", end="die")])
        assert pool[0].outcome is Outcome.LOST
        assert pool.output(0).count("the last words w\n") == 3


def test_failed_jobs_are_run_again_on_a_warm_session_with_the_mended_kernel(
    sessions: RealSessions,
) -> None:
    assert sessions.import_folder is not None
    kernel = Path(sessions.import_folder, "to_mend.py")
    kernel.write_text("def f(x):\n    return 1 / x\n")
    sessions.start()
    with sessions.master() as master:
        pool = master.run([Job("to_mend:f", x=x) for x in (0, 1, 0)])
        assert pool.n_failed == 2
        run = pool.run[-6:]
        kernel.write_text("def f(x):\n    print('mended')\n    return x\n")
        assert pool.retry().results() == [0, 1.0, 0]
        assert pool.output(2) == "mended\n"
        # The copies count: nothing of this run is left to run again.
        assert "no failed job is left to rerun" in call(sessions.base, "rerun", run).stderr
        asked = call(sessions.base, "rerun", f"{run}/0").stdout.strip()
        again = master.resume(find_run(LocalFiles(), sessions.base, asked.partition("/")[0]))
        assert again.results() == [0]
