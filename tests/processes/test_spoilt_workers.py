"""What a kernel does to its own process never reaches the next job, and never hangs a session."""

from __future__ import annotations

import pytest

from postroom import Job
from postroom.testing import RealSessions


def test_a_kernel_that_closes_descriptors_ends_its_worker_and_no_file_is_spoilt(
    sessions: RealSessions,
) -> None:
    sessions.start("0")
    with sessions.master() as master:
        pool = master.run([Job("kernels:close_descriptors")])
        (failure,) = pool.failures()
        assert "closed descriptors that it had not opened" in str(failure)
        assert sessions.import_folder is not None
        with open(f"{sessions.import_folder}/mine.txt") as file:
            assert file.read() == "what the kernel wrote"
        assert master.run([Job("kernels:double", x=2)]).results() == [4]
    assert sessions.guardians["0"].poll() is None


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_FSIZE"])
def test_a_kernel_that_lowers_a_limit_hangs_nothing_and_hurts_no_other_job(
    sessions: RealSessions, limit: str, hard: bool
) -> None:
    sessions.start("0")
    with sessions.master() as master:
        pool = master.run([Job("kernels:lower", limit=limit, hard=hard)])
        if pool.failures():  # its result can't be written: the job is to blame, and it is said why
            assert hard
            assert "could not go on: [Errno" in str(pool.failures()[0])
        else:
            assert pool.results() == ["lowered"]
        jobs = [Job("kernels:double", x=n) for n in range(50)]
        assert master.run(jobs).results() == [2 * n for n in range(50)]


def test_after_a_job_that_lowered_a_hard_limit_the_next_has_the_usual_one(
    sessions: RealSessions,
) -> None:
    sessions.start("0")
    look = Job("kernels:limits_of", limit="RLIMIT_NOFILE")
    with sessions.master() as master:
        lower = Job("kernels:lower", limit="RLIMIT_NOFILE", hard=True, to=200)
        before, lowered, after = master.run([look, lower, look]).results()
        assert lowered == "lowered"
        assert before == after


def test_each_job_finds_the_process_as_the_first_one_did(sessions: RealSessions) -> None:
    sessions.start("0")
    with sessions.master() as master:
        names = ["describe", "spoil", "describe", "be_nice", "describe"]
        found = master.run([Job(f"kernels:{name}") for name in names]).results()
        assert found[0] == found[2] == found[4]
        assert found[1] == "spoilt"
