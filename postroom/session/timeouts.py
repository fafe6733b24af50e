"""Writes the outcome of a task that exceeded its time limit, after its worker was killed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..parcel.sheets import Failure, JobEnd, Outcome, RanBy, pack_outcomes
from ..store.base import Base
from ..store.files import Files
from ..store.mailbox import InHand, Letter, read_in_hand, read_letter
from ..store.runs import Note, first_missing, publish_results, read_run_info, write_note


@dataclass(frozen=True)
class OverdueJob:
    """The job that a worker runs when its time is up, or when it has a stop order."""

    letter: Letter
    hand: InHand

    def record(
        self, files: Files, base: Base, ran_by: RanBy, *, limit_s: float, retries: int
    ) -> None:
        """Publish that it timed out; or, with retries left, note it, so that it is requeued.

        Only after its worker has ended. Before a worker begins a job with a time limit, it
        publishes the earlier jobs of its letter, so that this outcome comes next in the chain.
        """
        letter, job = self.letter, self.hand.job
        if first_missing(files, base, letter.run, letter.first, letter.stop) != job:
            return
        reason = f"took longer than its time limit of {limit_s:g} s"
        if letter.failed < retries:
            note = Note(
                letter.run,
                job,
                letter.attempt,
                "failed",
                ran_by.agent,
                reason=reason,
                at=time.time(),
            )
            write_note(files, base, note)
            return
        failure = Failure(Outcome.TIMED_OUT, "timed out", reason)
        done = JobEnd(failure=failure, seconds=limit_s)
        info = read_run_info(files, base, letter.run)
        publish_results(
            files, base, info, job, job + 1, lambda first: pack_outcomes(first, [done], ran_by)
        )


def job_in_hand(files: Files, base: Base, agent_id: str) -> OverdueJob | None:
    """What a worker runs now; to be called before it is ended."""
    letter = read_letter(files, base, agent_id)
    hand = read_in_hand(files, base, agent_id)
    if letter is None or hand is None or hand.letter_id != letter.letter_id:
        return None
    return OverdueJob(letter, hand)
