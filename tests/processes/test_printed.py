"""What kernels print in real sessions, and the traceback of those that fail."""

from __future__ import annotations

from postroom import Job
from postroom.parcel.sheets import Outcome
from postroom.store.job_ids import JobId
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
    assert "raise ValueError(word)\nValueError: w1\n" in shown
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
