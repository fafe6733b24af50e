"""Run many expensive tasks on the GPUs of this machine.

python main.py                       start agents, run the jobs, stop the agents
python main.py --hot-start           use the agents that ./start_agent.sh started
python main.py --resume              go on with the last run that was not finished
python main.py --resume --failed     run its failed jobs again, too, with the kernel as it is now
python main.py --n-tasks 500 --size 1024
"""

import shlex
import sys
import time

import numpy as np

from postroom import Job, Master, PostroomError, read_settings

# Settings: edit them here, or pass --base, --n-gpu, ..., or set POSTROOM_BASE, POSTROOM_N_GPU, ...
BASE = "./base"  # the post room: a folder, made if it is missing
N_GPU = 2  # how many agents to start, a GPU each (on the CPU if there is no GPU)
HOT_START = False  # True: use agents that live already, and leave them warm for the next run
N_TASKS = 60  # how many jobs
SIZE = 512  # how large the tensors are
RESUME = None  # a run's id, or "" for the newest unfinished one: compute only what is missing
FAILED = False  # with RESUME: the jobs that failed run again, too

TASK = "expensive_task:expensive_task"


def build_jobs(n_tasks: int, size: int) -> list[Job]:
    """The list of tasks: two tensors each."""
    random = np.random.default_rng(0)
    return [
        Job(
            TASK,
            a=random.standard_normal((size, size), dtype=np.float32),
            b=random.standard_normal((size, size), dtype=np.float32),
        ).options(name=f"product {number}")
        for number in range(n_tasks)
    ]


def main() -> int:
    """Build the jobs, run them, say what came of them; 1 if any failed."""
    settings = read_settings(
        __doc__,
        BASE=BASE,
        N_GPU=N_GPU,
        HOT_START=HOT_START,
        N_TASKS=N_TASKS,
        SIZE=SIZE,
        RESUME=RESUME,
        FAILED=FAILED,
    )
    own = {} if settings.hot_start else {"agents": settings.n_gpu, "check": TASK}
    with Master(settings.base, **own) as master:
        if not master.agents():
            raise PostroomError(
                f"no agent is running on {master.base.root}: start some with ./start_agent.sh "
                f"{settings.n_gpu} {settings.base}, or run without --hot-start"
            )
        started = time.monotonic()
        if settings.resume is None and not settings.failed:
            size = settings.size
            shared = {"weights": np.ones((size, size), dtype=np.float32) / size}
            pool = master.start(build_jobs(settings.n_tasks, size), shared)
        else:
            pool = master.resume(settings.resume or None, job=Job, failed=settings.failed)
        again = f"python main.py --resume {pool.run} --base {shlex.quote(settings.base)}"
        try:
            master.wait(pool, progress=True)
        except KeyboardInterrupt:
            kept = f"{pool.n_done} of {len(pool)} jobs are done and kept"
            print(f"\nstopped: {kept}; resume with: {again}", file=sys.stderr)
            return 130
        print(f"{pool.summary()}\nin {time.monotonic() - started:.1f} s")
    if pool.failures():
        print(f"run the failed jobs again: {again} --failed")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PostroomError as error:
        sys.exit(f"main.py: {error}")
