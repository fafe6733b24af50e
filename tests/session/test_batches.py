from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from postroom.jobs import Job
from postroom.session.batches import NoRows, NotAlike, split, stack
from tests.in_one_process import in_one_process

KERNELS = """
import os
import numpy as np

calls = []

def rows(x, k, mode="sum"):
    calls.append(len(x))
    if (k == 13).any():
        raise ValueError(f"no {len(x)}")
    return {"total": x.sum(axis=1) + k, "mode": np.array([mode] * len(x))}

def sizes(x):
    return np.full(len(x), len(x))

def whole(x):
    return 5.0

def one(x):
    print("job", os.environ["POSTROOM_JOB"])
    return x * 2

def fails_at(x):
    if x[0] == 7:
        raise ValueError("seven")
    return x

KEPT = np.zeros(3)

def reuses(x):
    KEPT[:] = x
    return KEPT

def changes(x):
    os.environ["CHANGED"] = "1"
    os.chdir("/")
    return "CHANGED" in os.environ and x

def finds(x):
    return [os.environ.get("CHANGED"), os.getcwd() != "/"]

def looks_up(shared, k):
    if k == 7:
        shared["spoilt"] = True
    return [shared["table"][k], "spoilt" in shared]
"""


class TestStack:
    def test_arrays_and_numbers_get_a_first_axis_and_all_else_is_passed_once(self) -> None:
        passed = [{"x": np.full(3, n), "k": n, "mode": "a"} for n in range(4)]
        stacked = stack(passed)
        assert stacked["x"].shape == (4, 3) and stacked["x"][2, 0] == 2
        assert stacked["k"].tolist() == [0, 1, 2, 3] and stacked["mode"] == "a"

    @pytest.mark.parametrize(
        "other", [{"x": np.zeros(4)}, {"x": 1.0}, {"y": np.zeros(3)}, {"x": np.zeros(3, "f4")}]
    )
    def test_what_differs_is_not_stacked(self, other: dict[str, object]) -> None:
        with pytest.raises(NotAlike):
            stack([{"x": np.zeros(3)}, other])

    def test_texts_that_differ_are_not_stacked(self) -> None:
        with pytest.raises(NotAlike, match="mode differs"):
            stack([{"mode": "a"}, {"mode": "b"}])


class TestSplit:
    def test_each_job_gets_its_row(self) -> None:
        found = split({"a": np.arange(6).reshape(2, 3), "b": (np.arange(2), ["x", "y"])}, 2)
        assert found[1]["a"].tolist() == [3, 4, 5]
        assert found[1]["b"][0] == 1 and found[1]["b"][1] == "y"

    @pytest.mark.parametrize("value", [5.0, np.zeros(3), np.array(1.0), [1, 2, 3], "ab"])
    def test_a_result_without_rows_is_refused(self, value: object) -> None:
        with pytest.raises(NoRows, match="a row for each job"):
            split(value, 2)


def test_alike_jobs_share_calls_and_each_gets_its_own_result(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as here:
        jobs = [Job("kernels:rows", x=np.full(3, n), k=n) for n in range(40)]
        pool = here.run([job.options(batched=True) for job in jobs])
        failed = [n for n in range(40) if pool[n].error]
        assert failed == [13]
        assert [float(pool[n].result()["total"]) for n in (0, 12, 14, 39)] == [
            0.0,
            48.0,
            56.0,
            156.0,
        ]
        assert "no 1" in str(pool[13].error)  # it failed alone, and no other with it


def test_batches_grow_while_they_succeed(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as here:
        here.run([Job("kernels:sizes", x=n).options(batched=True) for n in range(60)])
        pool = here.run([Job("kernels:sizes", x=n).options(batched=True) for n in range(400)])
        assert max(map(int, pool.results())) > 30


def test_jobs_that_differ_run_for_themselves(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as here:
        jobs = [Job("kernels:sizes", x=np.zeros(n % 3)).options(batched=True) for n in range(20)]
        assert set(map(int, here.run(jobs).results())) == {1}


def test_a_result_that_cannot_be_split_fails_each_job_with_what_to_do(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as here:
        pool = here.run([Job("kernels:whole", x=n).options(batched=True) for n in range(3)])
        assert pool.n_failed == 3 and "a row for each job" in str(pool[0].error)


class TestOneAfterTheOther:
    """Jobs that are alike and not batched: what they have in common is done once."""

    def test_each_has_its_name_and_its_output(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as here:
            pool = here.run([Job("kernels:one", x=np.full(3, n)) for n in range(60)])
            assert [int(one[0]) for one in pool.results()] == [2 * n for n in range(60)]

    def test_one_that_fails_fails_alone(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as here:
            jobs = [Job("kernels:fails_at", x=np.full(3, n)) for n in range(40)]
            pool = here.run([*jobs, *(job.options(retries=1) for job in jobs[:0])])
            assert [n for n in range(40) if pool[n].error] == [7]

    def test_a_buffer_that_the_kernel_fills_again_is_copied(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as here:
            pool = here.run([Job("kernels:reuses", x=float(n)) for n in range(60)])
            assert [float(one[0]) for one in pool.results()] == list(range(60))

    def test_each_finds_the_process_as_the_first_did(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as here:
            both = [Job(f"kernels:{name}", x=n) for name in ("finds", "changes") for n in range(30)]
            pool = here.run([*both, *(Job("kernels:finds", x=n) for n in range(30))])
            results = pool.results()
            assert results[:30] == results[60:] == [[None, True]] * 30

    def test_all_are_passed_the_shared_data_and_who_changes_them_fails_alone(
        self, tmp_path: Path
    ) -> None:
        with in_one_process(tmp_path, KERNELS) as here:
            jobs = [Job("kernels:looks_up", k=n) for n in range(40)]
            pool = here.run(jobs, {"table": list(range(40))})
            assert [n for n in range(40) if pool[n].error] == [7]
            assert "the kernel changed" in str(pool[7].error)
            assert [pool[n].result() for n in (0, 6, 8, 39)] == [[n, False] for n in (0, 6, 8, 39)]
