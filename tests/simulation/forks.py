"""A kernel that forks: its child has the worker's memory, and comes back from the kernel, too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from postroom.parcel.sheets import Failure, JobEnd, JobSheet, Outcome
from postroom.session.call_runner import call_here
from postroom.session.inbox import Inbox, RunJob
from postroom.store.append_log import RecordReader
from postroom.store.runs import RunInfo

from .disk import SimulatedBox, SimulatedFiles
from .processes import Process

if TYPE_CHECKING:
    from .roles import Machine


def call(process: Process, kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Call a kernel as a worker does."""
    return call_here(
        lambda: kernel(*arguments), {}, process_id=lambda: process.pid, end=process.die
    )


def fork(
    machine: Machine,
    worker: Process,
    inbox: Inbox,
    run_job: RunJob,
    serve: Callable[[Process, Inbox], None],
) -> None:
    """Fork a worker in the middle of a kernel."""
    letter = inbox._letter
    assert letter is not None
    job = inbox._done_from + len(inbox._done)
    twin = copy.copy(inbox)
    twin._done, twin._large = list(inbox._done), list(inbox._large)
    raises = machine.rng.random() < 0.5

    def come_back(process: Process, own_pid: int) -> dict[str, int]:
        process.sleep(machine.rng.choice((0.0, 0.01, 0.1)))
        process.pid = own_pid  # up to here the worker itself was running
        if raises:
            raise ValueError("the child's")
        return {"serial": -1}

    def body(process: Process) -> None:
        own_pid, process.pid = process.pid, worker.pid

        def first(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
            try:
                value = call(process, come_back, process, own_pid)
            except ValueError as error:
                return JobEnd(failure=Failure(Outcome.FAILED, "ValueError", str(error)))
            finally:
                del twin._say  # type: ignore[method-assign]
                twin._run_job = run_job
            return JobEnd(value)

        files = twin._files = SimulatedFiles(machine.disk, process)
        for name in ("_box", "_hand"):
            setattr(twin, name, SimulatedBox(files, getattr(inbox, name)._node))
        if twin._record_reader is not None:
            twin._record_reader = RecordReader(files, machine.base, letter.run)
        twin._run_job = first
        twin._say = lambda *_: None  # type: ignore[method-assign]  # the worker has said it
        if not twin._run(letter, job) or twin._due():
            twin._settle()
        serve(process, twin)

    machine.scheduler.spawn(f"fork of {worker}", body, parent=worker)
