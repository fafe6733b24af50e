"""How an errand ended, said where it counts: a result that stays, or a note and another attempt."""

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
    errand: CommandAttempt,
    ended: AttemptEnd,
    ran_by: RanBy,
    *,
    at: float,
) -> bool:
    """Publish how a command ended, or note it when it is to be tried again.

    False: a bad file has the result's name, and can be put aside only by the acting Master.
    """
    done, failure = ended.done, ended.done.failure
    if failure is not None and ended.again is not None:
        note = Note(
            errand.run,
            errand.job,
            errand.attempt,
            ended.again,
            errand.agent,
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
        errand.job,
        errand.job + 1,
        lambda job: pack_outcomes(job, [done], ran_by),
    )
