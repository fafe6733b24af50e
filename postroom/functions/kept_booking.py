"""One booking for several short calls in a row, in a session that shares its GPU.

To reserve memory takes several milliseconds: all leases of the machine are looked at. A call of a
kind that is known and short would take longer to book than to run. So the booking of such a call is
kept for a moment, and a call of the same kind that follows uses it. It ends a second
after it was made, so others wait for that memory no longer than this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..gpus.memory.booking import Booking, Need

IDLE_S = 0.1  # it is given back so long after the last call
MOST_S = 1.0


class KeptBooking:
    """Keeps the last booking of a process; one call at a time may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._booking: Booking | None = None
        self._in_use = False
        self._until = 0.0  # no call begins with it any more
        self._idle_at = 0.0  # it is given back, unless a call uses it
        self._thread: threading.Thread | None = None

    @contextmanager
    def use(self, need: Need, book: Callable[[], Booking]) -> Iterator[Booking]:
        """The booking that is kept, if it is for the same need, or else a new one."""
        with self._changed:
            booking = self._booking
            over = time.monotonic() >= self._until
            if booking is not None and (over or booking.need != need):
                self._give_back()
                booking = None
            self._in_use = booking is not None
        if booking is None:
            booking = book()
            with self._changed:
                self._booking, self._in_use = booking, True
                self._until = time.monotonic() + MOST_S
        try:
            yield booking
        except BaseException:
            self.close()  # it may have left memory behind, or none of it may be true any more
            raise
        self._keep()

    def _keep(self) -> None:
        with self._changed:
            self._in_use = False
            self._idle_at = time.monotonic() + IDLE_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        """Give the booking back when no call has used it for a while."""
        with self._changed:
            while self._booking is not None:
                left = self._idle_at - time.monotonic()
                if not self._in_use and left <= 0:
                    self._give_back()
                else:
                    self._changed.wait(max(left, IDLE_S / 4))
            self._thread = None

    def close(self) -> None:
        """Give the booking back now."""
        with self._changed:
            self._give_back()

    def _give_back(self) -> None:
        booking, self._booking = self._booking, None
        self._in_use = False
        if booking is not None:
            booking.close()
            self._changed.notify_all()
