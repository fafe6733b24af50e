"""What a future raises when no agent could make its call."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

from ..errors import PostroomError


class BrokenPool(PostroomError, BrokenProcessPool):
    """No agent can make a call, or the call has ended its workers; a BrokenExecutor."""


class UnreadableCall(BrokenPool):
    """A call, or its result, was pickled, and reading the pickle failed; the cause says why."""


class InitializerFailed(BrokenPool):
    """The initializer of an Executor has raised an error, so no call can be made."""
