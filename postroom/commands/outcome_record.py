"""Writing how an attempt ended: a result, or a note with which the job is requeued."""

from __future__ import annotations

from ..parcel.sheets import RanBy, pack_outcomes
from ..store.base import Base
from ..store.files import Files
from ..store.runs import Note, RunInfo, publish_results, write_note
from .attempt import AttemptEnd, CommandAttempt


def record(
    files: Files,
    base: Base,
    info: RunInfo,
    attempt: CommandAttempt,
    ended: AttemptEnd,
    ran_by: RanBy,
    *,
    at: float,
) -> bool:
    """Publish how a command ended, or note it when the job is requeued.

    False: a bad file has the result's name. Only the acting Master can move it away.
    """
    done, failure = ended.done, ended.done.failure
    if failure is not None and ended.again is not None:
        note = Note(
            attempt.run,
            attempt.job,
            attempt.attempt,
            ended.again,
            ran_by.agent,
            reason=f"{failure.kind}: {failure.message}",
            at=at,
            traceback=failure.traceback,
        )
        write_note(files, base, note)
        return True
    return publish_results(
        files,
        base,
        info,
        attempt.job,
        attempt.job + 1,
        lambda job: pack_outcomes(job, [done], ran_by),
    )
