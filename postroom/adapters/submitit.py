"""submitit: `AutoExecutor(folder, cluster="postroom")`.

Code that was written for Slurm runs on this machine, and each job has `gpus_per_node` GPUs of its
own: it waits for them in the ledger, with all other users of the machine. Pickles, logs, time
limits, checkpoints and requeueing are submitit's own, as on its local cluster.

    submit ──► postroom gpu run -n 2 ── waits: PENDING ──► submitit's controller: RUNNING ──► tasks

`gpu run` replaces itself by the controller, so both are one process, and its pid is the job's id.
The controller holds the lease and ends last. (If it is killed with -9, its tasks go on for a while
without a lease, as they would on the local cluster.)
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from submitit.local import local

from ..gpus.ledger.protocol import open_ledger
from ..text.sizes import to_mib

DEFAULT_TIMEOUT_MIN = 5.0  # submitit's own
DEFAULT_SIGNAL_DELAY_S = 30
SIGNALLED = 128  # a shell's code for a program that a signal has ended, without the signal's number


class PostroomJob(local.LocalJob[Any]):
    """A job that is `PENDING` until it has its GPUs."""

    gpus = 0

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """Return the state: PENDING, RUNNING, FINISHED or INTERRUPTED."""
        info: dict[str, str] = super().get_info(mode)
        if info["jobState"] == "RUNNING" and self.gpus and not self._has_gpus():
            return {"jobState": "PENDING"}
        if self._process is not None and (self._process.poll() or 0) > SIGNALLED:
            return {"jobState": "INTERRUPTED"}  # while it waited: `gpu run` says so by its code
        return info

    def done(self, force_check: bool = False) -> bool:
        """Return whether it has ended, in whichever way."""
        return bool(super().get_info()["jobState"] != "RUNNING")

    def _has_gpus(self) -> bool:
        holders = open_ledger().holders(squatters=False)
        return any(str(entry.process.pid) == self.job_id for entry in holders)


class PostroomExecutor(local.LocalExecutor):
    """Runs each job on GPUs of its own; `postroom_gpu_memory="8G"` shares GPUs by memory."""

    job_class = PostroomJob

    @classmethod
    def affinity(cls) -> int:
        """Return 0: it is used only by those who name it."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"setup", "gpu_memory", "visible_gpus", "signal_delay_s"}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        if kwargs.get("gpu_memory") is not None:
            to_mib(kwargs["gpu_memory"])  # so that a wrong size is an error here, not in the job
        super()._internal_update_parameters(**kwargs)

    def _submit_command(self, command: str) -> PostroomJob:
        parameters = self.parameters
        tasks = parameters.get("tasks_per_node", 1)
        gpus = parameters.get("gpus_per_node", 0)
        process = start_controller(
            self.folder,
            command,
            setup=parameters.get("setup", ()),
            gpus=gpus,
            name=parameters.get("name", "submitit"),
            memory=parameters.get("gpu_memory"),
            environment={
                "SUBMITIT_LOCAL_NTASKS": str(tasks),
                "SUBMITIT_LOCAL_TIMEOUT_S": str(
                    int(60 * parameters.get("timeout_min", DEFAULT_TIMEOUT_MIN))
                ),
                "SUBMITIT_LOCAL_SIGNAL_DELAY_S": str(
                    int(parameters.get("signal_delay_s", DEFAULT_SIGNAL_DELAY_S))
                ),
                "SUBMITIT_STDERR_TO_STDOUT": "1" if parameters.get("stderr_to_stdout") else "",
            }
            | _only(parameters.get("visible_gpus", ())),
        )
        job = PostroomJob(self.folder, str(process.pid), range(tasks), process)
        for part in (job, *job._sub_jobs):
            part.gpus = gpus
        return job


def _only(gpus: Sequence[int]) -> dict[str, str]:
    """Return the variable that lets `gpu run` choose only among these."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}


def start_controller(
    folder: os.PathLike[str],
    command: str,
    *,
    setup: Sequence[str],
    gpus: int,
    name: str,
    memory: str | None,
    environment: dict[str, str],
) -> subprocess.Popen[bytes]:
    """Start submitit's controller of one job, which survives this program, once it has its GPUs."""
    words = [sys.executable, "-m", "submitit.local._local", os.fspath(folder)]
    if gpus:
        share = ["--memory", memory] if memory else []
        lease = ["postroom", "gpu", "run", "-n", str(gpus), *share, "--name", name, "--"]
        words = [sys.executable, "-m", *lease, *words]
    else:
        environment = environment | {"CUDA_VISIBLE_DEVICES": ""}
    script = " && ".join([*setup, shlex.join(words)])
    return subprocess.Popen(
        ["/bin/sh", "-c", script] if setup else words,
        env={
            **os.environ,
            **environment,
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_LOCAL_WITH_SHELL": "1" if setup else "",
            "SUBMITIT_EXECUTOR": "local",  # whose environment the tasks read
        },
    )
