"""Jobs that were changed while they waited: `job_pool/<run>/<job>.edit`.

It is a parcel with that one job, which counts instead of the job's record in the append log. Only
the acting Master writes it, and only while the job is with no agent: a session reads it after its
letter has come, so it never sees it change. A rename puts it there, so it is never half written.
"""

from __future__ import annotations

from ..parcel.sheets import JobSheet
from .base import EDITED, Base
from .files import Files, replace_file

# A command with its options: the environment is in a file of its own.
LIMIT = 16 << 20


def read_edited(files: Files, base: Base, run: str, job: int) -> JobSheet | None:
    """What a job was changed to; None: it is as it was submitted. Raises BadFileError."""
    path = base.edited(run, job)
    try:
        return JobSheet(path, files.read(path, LIMIT), number=job)
    except FileNotFoundError:
        return None


def write_edited(files: Files, base: Base, run: str, job: int, parcel: bytes) -> None:
    """Change a job, so that it survives a power loss; only the acting Master does this."""
    replace_file(files, base.temporary(), base.edited(run, job), parcel, sync=True)


def list_edited(files: Files, base: Base, run: str) -> list[int]:
    """The jobs of a run that were changed."""
    names = (
        name.removesuffix(EDITED)
        for name in files.names(base.run_folder(run))
        if name.endswith(EDITED)
    )
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())
