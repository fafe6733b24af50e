"""What a base keeps of runs that are over, and for how long.

    unfinished      it stays: it can be resumed, or a program waits for it
    over, in use    it stays: its program lives and has its pool, so it may read results again
    over, let go    its results stay for a time, and all of them together up to a size; then the
                    oldest goes first (rule 22)

Only embedded runs of Python programs go (`Master.run`, `start`, `submit`, `open`). What a promise
covers stays until somebody says `postroom clean`: the standing queue, `keep=True`, `rerun`, and
whatever is unfinished. Arguments of jobs that ended well go while the run goes on. Shared data goes
when no run refers to it, snapshots and logs go with their run.

A program is alive while it holds `programs/<token>.lock`, which its runs name. Such a run is in use
until its program has dropped the JobPool, and says so by the file `let_go`. A program that resumes
a run puts `reader.<token>` into it, and takes that away again. So `let_go`, a dead program and no
living reader together mean: what was to be handed out has been handed out.

How long: an argument of Master, or POSTROOM_KEEP_RESULTS and POSTROOM_KEEP_BYTES, or the file
`retention.json` of the base (`postroom retention`), or 7 days, and 5 GiB or a tenth of the disk,
whichever is less.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import BadFileError, OtherVersionError, PostroomError
from ..text.durations import format_duration, parse_duration
from ..text.sizes import format_bytes, parse_bytes
from .base import LET_GO, READER, Base, new_program
from .files import Files, Lock, is_locked, replace_file
from .mailbox import is_plain_name
from .records import JsonRecord

DAY_S = 86_400.0
RESULTS_S = 7 * DAY_S
RESULTS_BYTES = 5 << 30
DISK_SHARE = 0.1
FOREVER = "forever"
_LIMIT = 1 << 16


@dataclass(frozen=True)
class RetentionSettings(JsonRecord):
    """What a base, or a Master, says about keeping results; None: nothing."""

    CALLED: ClassVar[str] = "the retention of a base"

    results_s: float | None = None  # how long results stay; negative: for ever
    results_bytes: int | None = None  # how much space they may take; negative: any

    def check(self) -> None:
        """A time or a size that is no number would remove everything, or nothing."""
        for value in (self.results_s, self.results_bytes):
            if value is not None and value != value:
                raise ValueError("it is not a number")

    def over(self, other: RetentionSettings) -> RetentionSettings:
        """These settings; where they say nothing, the other ones."""
        ours = {name: value for name, value in vars(self).items() if value is not None}
        return replace(other, **ours)


def parse_keep(results: str | float | None, size: str | int | None) -> RetentionSettings:
    """Settings as people write them: "30d", "20G", "forever"."""
    if isinstance(results, str):
        results = -1.0 if results == FOREVER else parse_duration(results)
    if isinstance(size, str):
        size = -1 if size == FOREVER else parse_bytes(size)
    return RetentionSettings(results, size)


@dataclass(frozen=True)
class Retention:
    """How long results of runs that are over stay, and how much space they may take."""

    results_s: float | None  # None: for ever
    results_bytes: int | None  # None: any

    def __str__(self) -> str:
        long = "for ever" if self.results_s is None else f"for {format_duration(self.results_s)}"
        most = "" if self.results_bytes is None else f", up to {format_bytes(self.results_bytes)}"
        return long + most


def read_settings_of(files: Files, base: Base) -> RetentionSettings:
    """What the base's own file says."""
    path = base.retention
    try:
        return RetentionSettings.decode(path, files.read(path, _LIMIT))
    except FileNotFoundError:
        return RetentionSettings()


def write_settings_of(files: Files, base: Base, settings: RetentionSettings) -> None:
    """Change what the base's own file says."""
    replace_file(files, base.temporary(), base.retention, settings.encode())


def settings_of_environment() -> RetentionSettings:
    """What the environment says."""
    results = os.environ.get("POSTROOM_KEEP_RESULTS") or None
    size = os.environ.get("POSTROOM_KEEP_BYTES") or None
    try:
        return parse_keep(results, size)
    except PostroomError as error:
        raise PostroomError(f"POSTROOM_KEEP_RESULTS or POSTROOM_KEEP_BYTES: {error}") from None


def retention_of(
    files: Files, base: Base, given: RetentionSettings | None = None, *, disk_bytes: int = 0
) -> Retention:
    """What holds for a base: what was given, or the environment, or its file, or the default.

    A file that cannot be read keeps everything: nobody knows what its user wants.
    """
    try:
        own = read_settings_of(files, base)
    except (BadFileError, OtherVersionError):
        own = RetentionSettings(-1.0, -1)
    most = min(RESULTS_BYTES, int(disk_bytes * DISK_SHARE)) if disk_bytes else RESULTS_BYTES
    asked = (given or RetentionSettings()).over(settings_of_environment()).over(own)
    found = asked.over(RetentionSettings(RESULTS_S, most))
    assert found.results_s is not None and found.results_bytes is not None
    return Retention(
        None if found.results_s < 0 else found.results_s,
        None if found.results_bytes < 0 else found.results_bytes,
    )


def register_program(files: Files, base: Base) -> tuple[str, Lock | None]:
    """Say that this program lives, for as long as the lock is held; its runs name the token."""
    with contextlib.suppress(OSError):  # without it, only the age of its runs protects them
        for _ in range(3):
            token = new_program()
            lock = files.try_lock(base.program_lock(token))
            if lock is not None and files.exists(base.program_lock(token)):
                return token, lock
    return "", None


def program_lives(files: Files, base: Base, token: str) -> bool:
    """Whether a program still holds its lock."""
    return is_plain_name(token) and is_locked(files, base.program_lock(token))


def is_in_use(files: Files, base: Base, run: str, program: str) -> bool:
    """Whether a living program may still read the results of a run.

    That is the program that submitted it, until it has dropped its pool, and those that resumed it.
    Ask while nobody can resume it: with its lock, exclusively.
    """
    names = files.names(base.run_folder(run))
    tokens = [name.removeprefix(READER) for name in names if name.startswith(READER)]
    if LET_GO not in names:
        tokens.append(program)
    return any(program_lives(files, base, token) for token in tokens)


def remove_dead_programs(files: Files, base: Base) -> Iterator[None]:
    """Remove the locks of programs that are gone, step by step."""
    for name in files.names(base.programs):
        path = f"{base.programs}/{name}"
        lock = files.try_lock(path)
        if lock is not None:  # a program that is just making it looks whether it is still there
            files.remove(path)
            lock.release()
        yield
