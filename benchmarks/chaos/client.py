"""The storm's client: submits one run after another, and after every death takes the last up again.

`python -m benchmarks.chaos.client BASE STATE JOBS RUN_JOBS SEED LONGEST_S keep|embedded HOW`. The
file STATE gets a line with each run's id and salt once the run is submitted; a client that is
killed before that was told nothing, and submits a new run. STATE.accepted says which jobs were
accepted. HOW is "in a list", or "one by one": then it submits what the run still lacks. It ends
after JOBS jobs, once there is a file STATE.enough.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys

from postroom import Job, JobFailed, Master, PostroomError

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "project")
# A run may end and be removed while its client is stopped: it looks for it this often.
LOOK_S = 2.0
# Every so manieth job forks.
FORK_EACH = 20
FORKS = ("returns", "raises", "thread", "multiprocessing")
# The results of a run differ from those of any other by the difference of their salts.
SALT = 1_000_000_000


def main() -> int:
    """Submit or resume runs until there were enough; wait for each, and check every value."""
    base, state, jobs, run_jobs, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    longest_s, keep, one_by_one = float(sys.argv[6]), sys.argv[7] == "keep", sys.argv[8]
    accepted = os.open(f"{state}.accepted", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def accept(run: str, first: int, stop: int) -> None:
        os.write(accepted, f"{run} {first} {stop}\n".encode())

    wrong = 0
    with Master(base, import_folder=PROJECT) as master:
        runs = _read(state)
        pool = None
        if runs:
            with contextlib.suppress(PostroomError):  # it is over, and was removed
                pool = master.resume(runs[-1][0])
        while True:
            if pool is None:
                if len(runs) * run_jobs >= jobs and os.path.exists(f"{state}.enough"):
                    return 1 if wrong else 0
                salt = SALT * (len(runs) + 1)
                listed = _jobs(run_jobs, seed, salt, longest_s, f"{state}.executed")
                if one_by_one == "one by one":
                    pool = master.open(keep=keep)
                else:
                    pool = master.submit_all(listed, keep=keep)
                runs.append((pool.run, salt))
                _write(state, runs)
            run, salt = runs[-1]
            accept(run, 0, len(pool))
            listed = _jobs(run_jobs, seed, salt, longest_s, f"{state}.executed")
            with contextlib.suppress(PostroomError):  # it is over, and was removed
                for job in listed[len(pool) :]:
                    number = pool.submit(job).number
                    accept(run, number, number + 1)
                while not pool.done:
                    with contextlib.suppress(TimeoutError):
                        pool.wait(LOOK_S)
                    master.look(run)
                for n, value in enumerate(pool.results(return_exceptions=True)):
                    wrong += value != n * n + salt and not isinstance(value, JobFailed)
                print(f"done: {len(pool)} jobs of {run}, {wrong} wrong so far", file=sys.stderr)
            pool = None


def _jobs(count: int, seed: int, salt: int, longest_s: float, ledger: str) -> list[Job]:
    length = random.Random(seed + salt)
    # Every second job takes no time, so that letters hold ranges, and parcels many results.
    seconds = [n % 2 * length.uniform(0, longest_s) for n in range(count)]
    forks = {n: length.choice(FORKS) for n in range(0, count, FORK_EACH)}
    return [
        Job(
            "storm_kernels:square",
            number=n,
            salt=salt,
            seconds=seconds[n],
            ledger=ledger,
            **({"fork": forks[n]} if n in forks else {}),
        )
        for n in range(count)
    ]


def _read(state: str) -> list[tuple[str, int]]:
    with contextlib.suppress(FileNotFoundError), open(state, encoding="ascii") as file:
        return [(run, int(salt)) for run, salt in map(str.split, file)]
    return []


def _write(state: str, runs: list[tuple[str, int]]) -> None:
    with open(f"{state}.new", "w", encoding="ascii") as file:
        file.writelines(f"{run} {salt}\n" for run, salt in runs)
    os.replace(f"{state}.new", state)


if __name__ == "__main__":
    sys.exit(main())
