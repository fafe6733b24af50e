"""Calls a verb as the shell does; reads what it asked of the scheduler."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping

from click.testing import CliRunner, Result

from postroom.cli.verbs import postroom
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.requests import RequestVerb, pending, read_request
from tests.queue.kit import FILES


def call(base: Base, *words: str, code: int = 0) -> Result:
    """Call a verb; its exit code is what the function returns, since click does not exit here."""
    done = CliRunner().invoke(
        postroom, words, env={"POSTROOM_BASE": base.root}, standalone_mode=False
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert (done.return_value or 0) == code, done.output
    return done


def asked(base: Base) -> list[tuple[RequestVerb, tuple[JobId, ...], int | str | None]]:
    requests = [read_request(FILES, base, name) for name in pending(FILES, base)]
    return [(request.verb, request.jobs, request.value) for request in requests]


def on_terminal(*words: str, env: Mapping[str, str] = os.environ) -> bytes:
    """Call a verb on a terminal of its own; return all that it printed there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "postroom", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        printed = b""
        try:
            while block := os.read(ours, 65536):
                printed += block
        except OSError:
            pass  # the verb has ended, and its terminal with it
        finally:
            os.close(ours)
        process.wait(60)
    return printed
