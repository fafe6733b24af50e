"""A session without its GPU: when it gives it back, and how the acting Master calls it.

`dispatch.resting` has the other half, and the picture. Who may do what: the session makes and
removes `<id>.REST`, and only while its worker is dead and its mailbox removed. The acting Master
writes into it, and empties it.
"""

from __future__ import annotations

import os

from ..errors import PostroomError
from ..store.base import Base
from ..store.files import Box, Files
from ..store.mailbox import InHand
from ..text.durations import parse_duration

# A session of the queue gives its GPU back after it has had nothing to do for this long. Loading
# torch again takes some seconds; another user's job may take hours.
REST_S = 30.0
# ... and after this long if somebody waits for its GPU. Two jobs of a queue are milliseconds apart.
WANTED_S = 2.0
VARIABLE = "POSTROOM_REST"
YIELD = "POSTROOM_YIELD"


def rest_s() -> float | None:
    """After how long an idle session of the queue gives its GPU back; None: never."""
    text = os.environ.get(VARIABLE, "")
    if text == "never":
        return None
    try:
        return parse_duration(text) if text else REST_S
    except PostroomError:
        raise PostroomError(f"{VARIABLE}={text!r}: write 30s, 10m, or never") from None


def told_to_yield() -> bool:
    """Whether the environment has a session stop its job when it is somebody else's turn."""
    return os.environ.get(YIELD, "") not in ("", "0", "no")


class RestFile:
    """The file that a session has instead of a mailbox while it has no GPU."""

    def __init__(self, files: Files, base: Base, agent_id: str) -> None:
        self._files = files
        self._path = base.rest(agent_id)
        self._box: Box | None = None

    def put_up(self) -> None:
        """From now on the acting Master may call."""
        self._files.remove(self._path)  # of a session that was killed
        self._box = self._files.create_box(self._path)

    def is_called(self) -> bool:
        """Whether the acting Master has work for this session."""
        return self._box is not None and self._box.size() > 0

    def is_gone(self) -> bool:
        """Whether somebody else has removed it: this session was taken for dead."""
        return self._box is not None and self._box.gone()

    def take_down(self) -> None:
        """No call is heard any more. Only then a worker may start, so nobody is called twice."""
        if self._box is not None:
            self._box.close()
            self._box = None
        self._files.remove(self._path)


class IdleWatch:
    """Tells when a worker has had nothing to do for long enough."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._seen: tuple[str, int] | None = None
        self._since = 0.0

    def begin(self) -> None:
        """A worker starts."""
        self._seen = None

    def is_over(
        self, now: float, hand: InHand | None, *, letter: bool, wanted: bool = False
    ) -> bool:
        """Whether to rest now; `hand` is the worker's line, `letter`: its mailbox is full.

        `wanted`: somebody else waits for the GPU.
        """
        if self._limit_s is None:
            return False
        seen = ("", -1) if hand is None else (hand.letter_id, hand.done)
        if letter or seen != self._seen:
            self._seen, self._since = seen, now
            return False
        return now >= self._since + (min(self._limit_s, WANTED_S) if wanted else self._limit_s)
