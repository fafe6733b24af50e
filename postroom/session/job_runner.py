"""How a worker runs one job: a task in its own process, a command through a minder.

Either kind of job may ask to have its GPU alone. One that ran out of GPU memory is retried alone,
if it has retries left: beside others it would fail in the same way. A command that had the GPU to
itself goes to a larger GPU that another session of the base has.

A task that breaks its context on the GPU, with a device-side assert or an illegal address, has
failed by itself: its failure is published, and then this worker is replaced. Only if the GPU itself
or the driver reports a fault is the task requeued instead, and the guardian decides about the GPU.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ..commands.attempt import AttemptEnd, CommandAttempt
from ..commands.job_environment import read_environment
from ..commands.spec import COMMAND, CommandSpec
from ..errors import BadFileError, OtherVersionError, PostroomError
from ..gpus.devices.device import DeviceMissing
from ..gpus.devices.faults import Fault, fault_of
from ..gpus.devices.out_of_memory import says_out_of_memory
from ..parcel.container import Buffer
from ..parcel.sheets import Failure, JobEnd, JobSheet, Outcome
from ..store.base import Base
from ..store.edited_jobs import read_edited
from ..store.files import Files
from ..store.journal import Journal
from ..store.runs import RunInfo, read_note
from .gpu_sharing import GpuSharing
from .inbox import Alike, TryAgain
from .task_output import KernelOutput

if TYPE_CHECKING:
    from .tasks import Tasks


# The worker's exit code when its GPU could not be used.
CARD_FAILED = 71
# ... and when it has met its first task, and can only run commands.
NEEDS_TASKS = 74
# What a user can do about an error that comes from the device.
ASYNCHRONOUS = (
    "the GPU reports errors late, so the traceback may name a later line: run the job with "
    "CUDA_LAUNCH_BLOCKING=1 in the environment to see the right one"
)


def preload(settings: dict[str, Any]) -> None:
    """Import the modules that tasks are likely to need."""
    for module in settings["preload"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    torch = sys.modules.get("torch")
    if torch is not None and settings["threads"] is not None:
        torch.set_num_threads(settings["threads"])
    # What was imported stays: the collector need not look at it again. With torch loaded, each look
    # at everything takes some 100 ms, in the middle of a job.
    gc.freeze()


class TasksNeeded(Exception):
    """A worker that can only run commands was sent a task: another worker has to take its place."""


class GuardianCalls(Protocol):
    """What a worker tells its guardian, and asks it."""

    def say(self, **fields: Any) -> None: ...

    def card_problem(self) -> str: ...


class RunCommand(Protocol):
    """Has a minder run a command: the session's, or this very process.

    Returns how it ended, for the inbox to publish; None when the minder has published or noted it.
    Calls `lingers` if the command takes long.
    """

    def __call__(
        self, attempt: CommandAttempt, lingers: Callable[[], None], /
    ) -> AttemptEnd | None: ...


class Turn(Protocol):
    """What the inbox knows of the current job."""

    @property
    def failed(self) -> int: ...

    def linger(self) -> None: ...


class JobRunner:
    """Runs the jobs of one worker."""

    def __init__(
        self,
        files: Files,
        base: Base,
        settings: dict[str, Any],
        guardian: GuardianCalls,
        journal: Journal,
        run_command: RunCommand,
    ) -> None:
        self._files = files
        self._base = base
        self._settings = settings
        self._gpu: str = settings["gpu"]
        self._guardian = guardian
        self._journal = journal
        self._ask_minder = run_command
        self._tasks: Tasks | None = None
        self.broken_context = False  # a task left the GPU unusable for this process
        self.descriptor = -1  # of this process: a kernel that closes it ends the worker
        self._environment = ""  # of the last command
        self._is_far = files.exists(base.far_mark)  # folders that jobs name are on another host
        self.turn: Turn | None = None
        # On the CPU there is no GPU that a job could have to itself; in a session that shares GPUs
        # each job books what it needs.
        alone = self._gpu == "cpu" or settings.get("shares")
        self.sharing = None if alone else GpuSharing(base, self._gpu, give_back=self.release)

    @property
    def tasks(self) -> Tasks:
        """What runs tasks; made when first needed: commands do without numpy, torch and a context
        on the GPU. DeviceMissing: they cannot run on the session's GPU."""
        if self._tasks is None:
            # A worker that was forked for commands has the environment of its guardian: its tasks
            # must see the session's GPU, and no other.
            os.environ.update(self._settings.get("environment", {}))
            preload(self._settings)
            from .tasks import Tasks

            shares = bool(self._settings.get("shares"))
            output = KernelOutput(self._base, self._settings["agent"])
            output.install()
            self._tasks = Tasks(
                self._files,
                self._base.data,
                self._journal,
                gpu=self._gpu,
                any_accelerator=bool(self._settings.get("any_accelerator")),
                shares=shares,
                output=output,
            )
            self._use_card_first()
        return self._tasks

    @property
    def used_up(self) -> str:
        """Why this process can run no more tasks, if it cannot."""
        return self._tasks.used_up if self._tasks is not None else ""

    def run_job(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd | None:
        """Run one job, alone on its GPU if it asks for that."""
        if info.queue:
            try:
                sheet = read_edited(self._files, self._base, info.run, job) or sheet
            except OtherVersionError:
                raise
            except BadFileError as error:
                return JobEnd(failure=Failure(Outcome.FAILED, type(error).__name__, str(error)))
        if self.sharing is None:
            return self._run(info, sheet, job, attempt)
        again = self._ran_out_of_memory(info, sheet, job, attempt)
        larger = self._larger_card(sheet, job) if again and sheet.task == COMMAND else ""
        if larger:
            self.sharing.leave()
            with GpuSharing(self._base, larger).alone():
                return self._run_command(info, sheet, job, attempt, elsewhere=larger)
        if sheet.options.exclusive or again:
            with self.sharing.alone():
                return self._run(info, sheet, job, attempt)
        self.sharing.enter()
        return self._run(info, sheet, job, attempt)

    def run_alike(self, info: RunInfo, sheet: JobSheet, jobs: range, attempt: int) -> Alike | None:
        """Run neighbours of a parcel as they are asked for; None: the first runs for itself."""
        if self._tasks is None or sheet.task == COMMAND or attempt > 1:
            return None
        if self.sharing is not None:
            self.sharing.enter()
        return self._tasks.run_alike(info, sheet, jobs, attempt, self.descriptor)

    def _run(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd | None:
        if sheet.task == COMMAND:
            return self._run_command(info, sheet, job, attempt)
        if self._settings.get("only_commands"):
            raise TasksNeeded
        try:
            _ = self.tasks  # loading them is not part of the job's time
        except DeviceMissing as error:
            return JobEnd(failure=Failure(Outcome.FAILED, type(error).__name__, str(error)))
        if sheet.options.timeout_s is None:
            return self._run_task(info, sheet, job, attempt)
        self._guardian.say(deadline_s=sheet.options.timeout_s, retries=sheet.options.retries)
        try:
            return self._run_task(info, sheet, job, attempt)
        finally:
            self._guardian.say(deadline_s=None)

    def _run_task(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
        done = self.tasks.run_job(info, sheet, job, attempt)
        self.tasks.restore(self.descriptor, done.seconds)
        if done.failure is not None and self.tasks.device.count:
            done = self._look_at_card(done, done.failure)
        return done

    def release(self, *, shared: bool = False) -> None:
        """Give back the GPU memory that tasks leave in this process: somebody else needs it."""
        if self._tasks is not None:
            self._tasks.release(shared=shared)

    def read_ahead(self, data: Buffer) -> Buffer | None:
        """Copy the next parcel to where its arrays are wanted, see `Tasks.read_ahead`."""
        return self._tasks.read_ahead(data) if self._tasks is not None else None

    def idle(self, seconds: float) -> None:
        """No job has come for a while."""
        if self._tasks is not None:
            self._tasks.idle(seconds)

    def _use_card_first(self) -> None:
        """Use the GPU once, as jobs will; when that fails, tell the guardian and end the worker."""
        try:
            self.tasks.device.touch()
        except Exception as error:  # whatever the driver raises
            self._leave_card(error, first=True)
        self._guardian.say(touched=True)

    def _look_at_card(self, done: JobEnd, failure: Failure) -> JobEnd:
        """After a failed task: see whether this process can still use the GPU.

        All work of earlier tasks has ended, so a broken context is this task's own doing.
        """
        device = self.tasks.device
        try:
            device.synchronise()
            device.free()
            device.touch()
            self.tasks.after_failure(failure)
            return done
        except Exception as error:
            fault = fault_of(error)
            if fault in (Fault.MEMORY, Fault.BUSY):
                return done  # a neighbour fills the card: no sign of a broken context
            if fault is Fault.CARD or self._guardian.card_problem():
                self._leave_card(error, first=False)
            said = f"{type(error).__name__}: {_first_line(error)}"
        self.broken_context = True
        self.tasks.state.used_up = f"a job left its context on the GPU unusable ({said})"
        also = "" if said.partition(": ")[2] in failure.message else f"; on the GPU: {said}"
        told = replace(failure, message=f"{failure.message}{also} ({ASYNCHRONOUS})")
        return JobEnd(failure=told, seconds=done.seconds)

    def _leave_card(self, error: Exception, *, first: bool) -> NoReturn:
        """Leave the GPU to the guardian: the running task is requeued, and not blamed."""
        said = f"{type(error).__name__}: {_first_line(error)}"
        self._guardian.say(touch_failed=said, fault=fault_of(error).name, first=first)
        raise SystemExit(CARD_FAILED)

    def _run_command(
        self, info: RunInfo, sheet: JobSheet, job: int, attempt: int, *, elsewhere: str = ""
    ) -> JobEnd | None:
        """Have a command run; None: its minder has published or noted how it ended."""
        assert self.turn is not None
        self.release(shared=True)
        try:
            spec = CommandSpec.of_job(sheet, job)
            self._check_environment(info.run, spec.environment)
        except OtherVersionError:
            raise
        except (BadFileError, TypeError) as error:
            return JobEnd(failure=Failure(Outcome.FAILED, type(error).__name__, str(error)))
        if not spec.folder or self._is_far:
            spec = spec.but(folder=self._base.job_folder(info.run, job))
        made = CommandAttempt(spec, info.run, job, attempt, self.turn.failed, elsewhere)
        ended = self._ask_minder(made, self.turn.linger)
        if ended is None:
            return None
        failure = ended.done.failure
        if failure is not None and ended.again is not None:
            reason = f"{failure.kind}: {failure.message}"
            raise TryAgain(ended.again, reason, failure.traceback)
        return ended.done

    def _check_environment(self, run: str, name: str) -> None:
        """Raise OtherVersionError if no minder of this version could read a job's environment."""
        if name and name != self._environment:
            try:
                read_environment(self._files, self._base, run, name)
            except OtherVersionError:
                raise
            except (PostroomError, OSError):
                return  # the minder finds the same, and says so as the job's outcome
            self._environment = name

    def _ran_out_of_memory(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> bool:
        if attempt == 1:
            return False
        note = read_note(self._files, self._base, info.run, job, attempt - 1)
        return note is not None and says_out_of_memory(note.reason)

    def _larger_card(self, sheet: JobSheet, job: int) -> str:
        """The smallest GPU of the base's sessions on which a command is not known to run out.

        Empty when there is none, or when this session's GPU is one of them.
        """
        from ..commands.gpu_use import fitting_cards

        spec = CommandSpec.of_job(sheet, job)
        fitting = fitting_cards(self._base, spec.command, spec.cwd)
        if not fitting or any(card.uuid in self._gpu.split(",") for card in fitting):
            return ""
        return min(fitting, key=lambda card: (card.memory_mib, card.index)).uuid


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
