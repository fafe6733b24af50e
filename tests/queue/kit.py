"""A queue to look at: commands queued and ended with no process to run them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from postroom.base import Base
from postroom.contents import Done, Failure, Maker, Outcome, pack_outcomes
from postroom.files import LocalFiles
from postroom.ids import JobId
from postroom.queue.submission import Ask, submit
from postroom.runs import publish_results, read_card
from postroom.wishes import Wishes

FILES = LocalFiles()
FAILURE = Failure(Outcome.FAILED, "failed", "exit code 3: no such data", "Traceback: ...")


def queue(base: Base, *commands: str, project: str = "p", **wishes: object) -> list[JobId]:
    asks = [Ask(one, cwd="/", name=one, wishes=Wishes(**wishes)) for one in commands]  # type: ignore[arg-type]
    return submit(FILES, base, asks, project=project)


def end(base: Base, job: JobId, failure: Failure | None = None, *, at: float | None = None) -> None:
    """Publish how a job ended, as a minder does."""
    done = Done(None if failure else {"exit": 0}, failure, 1.5)
    maker = Maker("0", "cpu", 1, time.time() - 1.5)
    publish_results(
        FILES,
        base,
        read_card(FILES, base, job.run),
        job.number,
        job.number + 1,
        lambda number: pack_outcomes(number, [done], maker),
    )
    if at is not None:
        os.utime(base.result(job.run, job.number), (at, at))


def make_old(base: Base, run: str, *, days: float = 10) -> None:
    """Let a run have been begun, and have changed last, long ago."""
    at = time.time() - days * 86_400
    card = replace(read_card(FILES, base, run), created_at=at)
    Path(base.run_card(run)).write_bytes(card.encode())
    for place in (base.asked(run), base.answered(run)):
        os.utime(place, (at, at))
