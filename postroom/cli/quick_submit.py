"""`postroom submit` without click, for calls with few options: shell loops wait for it.

It takes 2.4 times as long as a bare Python; click alone would take half as long again. What it does
not know, and whatever needs a message to somebody who reads it, is left to `submit`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from .fast_import import importing

if TYPE_CHECKING:
    from ..store.base import Base
    from ..store.files import Files

_OPTIONS = {
    "-n": "name",
    "--name": "name",
    "-P": "project",
    "--project": "project",
    "-p": "priority",
    "--priority": "priority",
    "-b": "base",
    "--base": "base",
}


def read_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]] | None:
    """The options, and the command behind them; None: this is for `submit`."""
    given: dict[str, str] = {}
    left = list(words)
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).partition("=")
        name = _OPTIONS.get(option)
        if name is None or (equals and not option.startswith("--")):
            return None
        if not equals:
            if not left:
                return None
            value = left.pop(0)
        given[name] = value
    return (given, left) if left else None


def run(words: Sequence[str]) -> None:
    """Queue a command, print its id, and exit; return if this is for `submit`."""
    found = read_options(words)
    if found is None:
        return
    given, command = found
    priority = given.get("priority", "0")
    # A script may have options in it; a command line with more behind it is a mistake.
    script = any(map(os.path.isfile, command[:2])) or (" " in command[0] and len(command) > 1)
    if script or not priority.removeprefix("-").isdecimal():
        return
    with importing():
        from ..commands.spec import CommandSpec
        from ..queue.submission import DEFAULT_PROJECT, submit
        from ..store.base import Base, default_base, open_base
        from ..store.files import LocalFiles
        from ..store.scheduling import SchedulingOptions

    folder = given.get("base") or default_base()
    files = LocalFiles()
    if not os.path.exists(Base(folder).format):
        return
    if sys.stderr.isatty() and not _is_served(files, Base(folder)):
        return  # `submit` says what is missing
    spec = CommandSpec(
        # One word is read by a shell; several were read by the submitting shell already.
        command[0] if len(command) == 1 else shlex.join(command),
        name=given.get("name", ""),
        cwd=os.getcwd(),
        retries=0,
        number=1,
        scheduling=SchedulingOptions(priority=int(priority)),
    )
    base = open_base(folder, write=False)
    project = given.get("project", DEFAULT_PROJECT)
    (job,) = submit(files, base, [spec], project=project)
    _leave(job.short)


def _is_served(files: Files, base: Base) -> bool:
    """Whether a scheduler and an agent seem to live: a lock is held, a mailbox is up."""
    from ..store.files import is_locked

    if not is_locked(files, base.master_lock):
        return False
    return any(name.endswith((".POOL", ".REST")) for name in files.names(base.agent_pool))


def _leave(text: str) -> NoReturn:
    """Print and exit at once: to unload all modules takes as long as to write the job."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    os._exit(0)
