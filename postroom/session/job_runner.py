"""How a worker runs one job: a task in its own process, a command through its guardian.

Either way the job may ask to have its card alone. A command that ran out of the card's memory is
tried again alone, if it may be tried again at all: beside others it would fail in the same way. If
it had the card to itself, it goes to a larger one that another session of the base has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..commands.attempt import ASKED, COMMAND, AttemptEnd, CommandAttempt
from ..commands.failure import Cause
from ..errors import BadFileError
from ..parcel.sheets import Failure, JobEnd, JobSheet, Outcome
from ..store.base import Base
from ..store.files import Files
from ..store.journal import Journal
from ..store.runs import RunInfo, read_note
from .card_health import touch
from .gpu_sharing import GpuSharing
from .inbox import TryAgain

if TYPE_CHECKING:
    from .tasks import Tasks


# The worker's exit code when its card could not be used.
CARD_FAILED = 71


class GuardianCalls(Protocol):
    """What a worker can ask of its guardian."""

    def say(self, **fields: Any) -> None: ...

    def ask(self, errand: CommandAttempt, lingers: Callable[[], None]) -> AttemptEnd | None:
        """Have a command run; None: how it ended is on disk. `lingers` is called if it is long."""


class Turn(Protocol):
    """What is known at the desk of the job in hand."""

    @property
    def failed(self) -> int: ...

    def linger(self) -> None: ...


class JobRunner:
    """Runs the jobs of one worker."""

    def __init__(
        self,
        files: Files,
        base: Base,
        agent_id: str,
        settings: dict[str, Any],
        guard: GuardianCalls,
        journal: Journal,
    ) -> None:
        self._files = files
        self._base = base
        self._agent_id = agent_id
        self._settings = settings
        self._gpu: str = settings["gpu"]
        self._gpu_name: str = settings["gpu_name"]
        self._guard = guard
        self._journal = journal
        self._kernels: Tasks | None = None
        self.turn: Turn | None = None
        # On the CPU there is no card that a job could have to itself; a session that shares cards
        # books what each job needs.
        alone = self._gpu == "cpu" or settings.get("shares")
        self.sharing = None if alone else GpuSharing(base, self._gpu)

    @property
    def kernels(self) -> Tasks:
        """What runs tasks; made when it is first needed, since commands can do without numpy."""
        if self._kernels is None:
            from .tasks import Tasks

            shares = bool(self._settings.get("shares"))
            self._kernels = Tasks(self._files, self._base.data, self._journal, shares=shares)
        return self._kernels

    def run_job(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd | None:
        """Run one job, alone on its card if it asks for that."""
        if self.sharing is None:
            return self._run(info, sheet, job, attempt)
        again = self._ran_out_of_memory(info, sheet, job, attempt)
        larger = self._larger_card(sheet, job) if again else ""
        if larger:
            self.sharing.leave()
            with GpuSharing(self._base, larger).alone():
                return self._run_command(info, sheet, job, attempt, elsewhere=larger)
        if sheet.options.exclusive or again:
            with self.sharing.alone():
                return self._run(info, sheet, job, attempt)
        self.sharing.enter()
        return self._run(info, sheet, job, attempt)

    def _run(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd | None:
        if sheet.task == COMMAND:
            return self._run_command(info, sheet, job, attempt)
        if sheet.options.timeout_s is None:
            return self._run_task(info, sheet, job, attempt)
        self._guard.say(deadline_s=sheet.options.timeout_s, retries=sheet.options.retries)
        try:
            return self._run_task(info, sheet, job, attempt)
        finally:
            self._guard.say(deadline_s=None)

    def _run_task(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
        done = self.kernels.run_job(info, sheet, job, attempt)
        if done.failure is not None:
            # A task that left the card unusable would fail all that follow: that is no result of
            # theirs, and perhaps not its own.
            self.check_card()
        return done

    def check_card(self) -> None:
        """Touch the card; when it cannot be used, the guardian is told and the worker ends."""
        problem = touch(self.kernels.device)
        if problem:
            self._guard.say(touch_failed=problem)
            raise SystemExit(CARD_FAILED)

    def _run_command(
        self, info: RunInfo, sheet: JobSheet, job: int, attempt: int, *, elsewhere: str = ""
    ) -> JobEnd | None:
        """Have a command run; None: how it ended, its minder has published or noted by then."""
        assert self.turn is not None
        try:
            asked = {"folder": self._base.job_folder(info.run, job), **sheet.plain(job)}
            errand = CommandAttempt(
                base=self._base.root,
                run=info.run,
                job=job,
                attempt=attempt,
                failed=self.turn.failed,
                retries=sheet.options.retries,
                durable=info.durable,
                agent=self._agent_id,
                gpu=self._gpu,
                gpu_name=self._gpu_name,
                timeout_s=sheet.options.timeout_s,
                elsewhere=elsewhere,
                **{name: asked[name] for name in ASKED if name in asked},
            )
        except (BadFileError, TypeError) as error:
            return JobEnd(failure=Failure(Outcome.FAILED, type(error).__name__, str(error)))
        ended = self._guard.ask(errand, self.turn.linger)
        if ended is None:
            return None
        failure = ended.done.failure
        if failure is not None and ended.again is not None:
            reason = f"{failure.kind}: {failure.message}"
            raise TryAgain(ended.again, reason, failure.traceback)
        return ended.done

    def _ran_out_of_memory(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> bool:
        if sheet.task != COMMAND or attempt == 1:
            return False
        note = read_note(self._files, self._base, info.run, job, attempt - 1)
        return note is not None and note.reason.startswith(Cause.GPU_MEMORY.value)

    def _larger_card(self, sheet: JobSheet, job: int) -> str:
        """The smallest card of the base's sessions on which a command is not known to run out.

        Empty when its own session's is one of them, or none is.
        """
        from ..commands.gpu_use import fitting_cards

        asked = sheet.plain(job)
        fitting = fitting_cards(self._base, asked["command"], asked["cwd"])
        if not fitting or any(card.uuid in self._gpu.split(",") for card in fitting):
            return ""
        return min(fitting, key=lambda card: (card.memory_mib, card.index)).uuid
