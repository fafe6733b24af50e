"""The process of a running command is found by its environment."""

from __future__ import annotations

import os
import subprocess

from postroom.queue.job_process import find_process
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.system.process_tree import MARK, mark_of


def test_the_topmost_process_of_a_job_is_found(base: Base) -> None:
    job = JobId("run", 7)
    environment = {**os.environ, MARK: mark_of(base.root, "0"), "POSTROOM_JOB": str(job)}
    process = subprocess.Popen(
        ["bash", "-c", "sleep 60 & echo started; wait"],
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert find_process(base, "0", job) == process.pid
        assert find_process(base, "0", JobId("run", 8)) is None
        assert find_process(base, "1", job) is None
    finally:
        os.killpg(process.pid, 9)
        process.communicate()
