"""The storm's client: submits its run once, and after every death takes it up again.

`python -m benchmarks.chaos.client BASE STATE JOBS SEED LONGEST_S keep|embedded HOW`: the file STATE
gets the run's id once it is submitted. A client that is killed before has been told nothing, and
submits a new run. HOW is "in a list", or "one by one": then it submits what the run still lacks.
"""

from __future__ import annotations

import os
import random
import sys

from postroom import Job, Master

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "project")


def main() -> int:
    """Submit or resume, wait for every job, check every value."""
    base, state, jobs, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    keep, one_by_one = sys.argv[6] == "keep", sys.argv[7] == "one by one"
    length = random.Random(seed)
    longest_s = float(sys.argv[5])
    # Every second job takes no time, so that letters hold ranges, and parcels many results.
    seconds = [n % 2 * length.uniform(0, longest_s) for n in range(jobs)]
    listed = [
        Job("storm_kernels:square", number=n, seconds=seconds[n], ledger=f"{state}.executed")
        for n in range(jobs)
    ]
    with Master(base, import_folder=PROJECT) as master:
        try:
            with open(state, encoding="ascii") as file:
                pool = master.resume(file.read())
        except FileNotFoundError:
            pool = master.open(keep=keep) if one_by_one else master.submit(listed, keep=keep)
            with open(f"{state}.new", "w", encoding="ascii") as file:
                file.write(pool.run)
            os.replace(f"{state}.new", state)
        for job in listed[len(pool) :]:
            pool.submit(job)
        pool.wait()
        wrong = [n for n, value in enumerate(pool.results()) if value not in (n * n + 1, None)]
    for failure in pool.failures()[:10]:
        print(failure, file=sys.stderr)
    print(f"done: {len(pool)} jobs, {len(wrong)} wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
