"""Every error that Postroom raises, under one root.

`XError` is a fault; a past participle (`JobFailed`) is an outcome. Each message is one sentence
that says what happened and what to do.
"""

from __future__ import annotations


class PostroomError(Exception):
    """The root: catch this to catch everything that Postroom raises on purpose."""


class BaseFolderError(PostroomError):
    """The base folder cannot be used: missing, of another user, of another version, read-only."""


class BadFileError(PostroomError):
    """A file of the base has the wrong content or type, and was not used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class OtherVersionError(BadFileError):
    """A file of the base is of another version of Postroom: it was left as it is, and not used."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(
            path, f"was written by another version of Postroom ({detail}); use that one"
        )


class RunRemovedError(PostroomError):
    """A run was removed, or is being removed: it takes no more jobs."""


class PayloadError(PostroomError, TypeError):
    """A value cannot travel; the message names the value, its type, and what to pass instead."""


class KernelError(PostroomError):
    """A task's function cannot be found or imported."""


class GpuError(PostroomError):
    """A GPU is unknown, lost, or does not answer."""


class CardHeld(PostroomError):
    """A GPU is in use by another process; the message says by which."""


class StalledError(PostroomError):
    """Nothing has been able to run for longer than the caller wanted to wait."""


class NoAgentsError(PostroomError):
    """No agent is alive to run the jobs."""


class JobFailed(PostroomError):
    """A job ended without a result; the worker's traceback is the cause."""


class RemoteTraceback(Exception):
    """The worker's traceback, carried as the cause of a job's error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tb = text  # as `concurrent.futures` calls it

    def __str__(self) -> str:
        return f"\n\n{self.tb.rstrip()}"


def brief(key: object) -> str:
    """A key or name for a message: one short line without control characters."""
    # Python refuses to write very long integers in decimal.
    text = hex(key) if type(key) is int and key.bit_length() > 64 else repr(key)
    return text if len(text) <= 80 else f"{text[:38]}...{text[-38:]}"
