"""The page's one reader of the base: a thread that answers one question after another."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from ..commands.code_snapshot import take_snapshot
from ..commands.job_environment import read_environment
from ..commands.spec import CommandSpec
from ..queue.actions import (
    ActionInput,
    ActionResult,
    edit,
    edit_project,
    find_action,
    wait_settled,
    waiting_command,
)
from ..queue.notices import notify_of
from ..queue.queue_view import QueueView
from ..queue.rows import Overview
from ..queue.submission import submit
from ..store.base import Base
from ..store.files import Files, LocalFiles
from ..store.job_ids import JobId
from ..store.runs import appending
from .submit_plan import SubmitForm

T = TypeVar("T")
# Requests within this time share one overview.
FRESH_S = 0.4
# Wait so long for the scheduler, so that the next page shows the change.
SETTLE_S = 1.5


class QueueReader:
    """Asks the `QueueView` in a thread of its own, so that the server never blocks."""

    def __init__(self, base: Base, files: Files | None = None) -> None:
        self.base = base
        self.files = files or LocalFiles()
        self._view = QueueView(base, self.files)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self.card_names: dict[str, str] = {}  # by uuid
        self._overview: tuple[float, Overview] | None = None

    async def query(self, question: Callable[[QueueView], T]) -> T:
        """Ask the view."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, question, self._view)

    async def overview(self) -> Overview:
        """The overview; requests at about the same time share one."""
        return await self.query(self._read_overview)

    async def act(self, target: str, verb: str, what: ActionInput) -> tuple[ActionResult, bool]:
        """Do what a verb says; also return whether it is done already."""
        action = find_action(target, verb)
        result = await self.query(lambda view: action.act(view, what))
        return result, await self._settle(result)

    async def _settle(self, result: ActionResult) -> bool:
        """Wait a moment until the scheduler has done what it was asked to; False: not yet."""
        acting = await self.query(lambda view: view.read_state().master_pid is not None)
        timeout_s = SETTLE_S if acting else 0.0
        done = await asyncio.to_thread(wait_settled, self._view, result, timeout_s)
        self._overview = None
        return done

    async def submit(
        self, asks: Sequence[CommandSpec], wanted: SubmitForm, again: JobId | None = None
    ) -> list[JobId]:
        """Queue commands; when this returns, they are on disk. `again`: like that job, edited."""

        def queue(view: QueueView) -> list[JobId]:
            specs, environment = list(asks), None
            with contextlib.ExitStack() as stack:
                if again is not None:
                    job, spec, _ = view.command(again)
                    specs = [replace(one, rerun_of=job) for one in asks]
                    stack.enter_context(appending(self.files, self.base, job.run))
                    if spec.environment:
                        environment = read_environment(
                            self.files, self.base, job.run, spec.environment
                        )
                snapshot = None
                if wanted.snapshot:
                    snapshot = stack.enter_context(take_snapshot(specs[0].cwd, self.base))
                found = submit(
                    self.files,
                    self.base,
                    specs,
                    project=wanted.project,
                    environment=environment,
                    snapshot=snapshot,
                )
            for target in wanted.notify:
                notify_of(self.files, self.base, found, target)
            return found

        found = await self.query(queue)
        self._overview = None
        return found

    async def edit(
        self, job: JobId, change: Callable[[CommandSpec], CommandSpec], project: str
    ) -> ActionResult:
        """Change a job that waits, as `postroom edit` does; in another project it is a new job."""

        def ask(view: QueueView) -> ActionResult:
            found, _, now = waiting_command(view, job)
            if project != now:
                return edit_project(view, [found], project, change)
            return edit(view, [found], change)

        result = await self.query(ask)
        await self._settle(result)
        return result

    def close(self) -> None:
        """End the thread."""
        self._thread.submit(self._view.close)
        self._thread.shutdown(wait=False)

    def _read_overview(self, view: QueueView) -> Overview:
        now = time.monotonic()
        if self._overview is None or now - self._overview[0] > FRESH_S:
            found = view.overview()
            self.card_names |= {card.uuid: f"GPU {card.index} {card.name}" for card in found.cards}
            self._overview = now, found
        return self._overview[1]
