"""Why a command failed, from what is known of its end."""

from __future__ import annotations

import signal

import pytest

from postroom.commands.failure import Cause, End, explain, is_out_of_memory
from postroom.parcel.sheets import Outcome
from postroom.system.oom_kills import OOM_MESSAGE


@pytest.mark.parametrize(
    ("end", "cause", "message"),
    [
        (End(3, err="a\nwhy\n"), Cause.EXIT, "exit code 3: why"),
        (End(3, out="only here\n"), Cause.EXIT, "exit code 3: only here"),
        (End(127), Cause.MISSING, "exit code 127"),
        (End(126), Cause.MISSING, "exit code 126"),
        (End(None, signal.SIGSEGV), Cause.CRASHED, "ended by SIGSEGV"),
        (End(128 + signal.SIGABRT), Cause.CRASHED, "ended by SIGABRT"),
        (End(None, signal.SIGKILL), Cause.KILLED, "ended by SIGKILL"),
        (End(None, signal.SIGKILL, oom_kills=1), Cause.HOST_MEMORY, OOM_MESSAGE),
        (End(128 + signal.SIGKILL, oom_kills=1), Cause.HOST_MEMORY, OOM_MESSAGE),
        (End(None, signal.SIGSEGV, oom_kills=1), Cause.CRASHED, "ended by SIGSEGV"),
        (End(1, err="MemoryError\n"), Cause.HOST_MEMORY, "exit code 1: MemoryError"),
        (End(1, out="CUDA out of memory.\n"), Cause.GPU_MEMORY, "exit code 1: CUDA out of memory."),
        (End(1, out="CUDA out of memory.\n", on_gpu=False), Cause.EXIT, "exit code 1"),
        (End(1, err="GPU is lost\n"), Cause.GPU_LOST, "exit code 1: GPU is lost"),
        (
            End(1, err="CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
            Cause.GPU_BUSY,
            "exit code 1: CUDA error: CUDA-capable device(s) is/are busy or unavailable (another "
            "process has the GPU for itself: compute mode EXCLUSIVE_PROCESS",
        ),
        (End(0, timed_out_s=2.5), Cause.TIMED_OUT, "took longer than its time limit of 2.5 s"),
        (End(None, refused="no GPU has 80 GB", no_gpu=True), Cause.GPU_MEMORY, "no GPU has 80 GB"),
        (End(None, refused="it is missing"), Cause.NOT_STARTED, "it is missing"),
        (End(0, over="it uses 9 of 8"), Cause.OVER, "it uses 9 of 8; reserve more with --memory"),
    ],
)  # fmt: skip
def test_causes_are_told_apart(end: End, cause: Cause, message: str) -> None:
    failure = explain(end)
    assert failure is not None
    assert failure.kind == cause.value
    assert failure.message.startswith(message)
    assert (failure.outcome is Outcome.TIMED_OUT) == (cause is Cause.TIMED_OUT)


def test_a_command_that_succeeded_has_no_failure() -> None:
    assert explain(End(0, err="CUDA out of memory")) is None
    assert not is_out_of_memory(End(0, err="CUDA out of memory"))


def test_a_command_that_was_refused_did_not_run_out_of_memory() -> None:
    assert is_out_of_memory(End(1, err="CUDA out of memory"))
    assert not is_out_of_memory(End(None, refused="no GPU is large enough", no_gpu=True))
