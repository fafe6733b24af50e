"""Opens the next parcel while a job runs: reading and checking large arguments takes time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from ..parcel.container import Buffer
from ..parcel.sheets import JobSheet


class Prefetcher:
    """A thread that opens one parcel at a time."""

    def __init__(self, place: Callable[[Buffer], Buffer | None] = lambda _: None) -> None:
        """`place` copies a parcel to where its arrays are wanted; None: they stay in their file."""
        self._place = place
        self._asked: queue.SimpleQueue[Callable[[], JobSheet] | None] = queue.SimpleQueue()
        self._opened: queue.SimpleQueue[JobSheet | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._first: int | None = None  # job of the parcel that is being opened

    def begin(self, first: int, open_sheet: Callable[[], JobSheet]) -> None:
        """Open the parcel that begins with a job."""
        self.take(-1)
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads can be started: it is opened when it is needed
                return
            self._thread = thread
        self._first = first
        self._asked.put(open_sheet)

    def take(self, first: int) -> JobSheet | None:
        """The parcel that begins with a job; None: it was not asked for, or cannot be opened."""
        if self._first is None:
            return None
        sheet = self._opened.get()
        asked, self._first = self._first, None
        return sheet if asked == first else None

    def close(self) -> None:
        """End the thread."""
        self.take(-1)
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (open_sheet := self._asked.get()) is not None:
            sheet: JobSheet | None
            try:
                sheet = open_sheet()
                if (placed := self._place(sheet.parcel.view)) is not None:
                    sheet = JobSheet(sheet.parcel.path, placed, number=sheet.first)
                    del placed
                sheet.parcel.check()
            except Exception:  # whoever takes it opens it again, and gets the error
                sheet = None
            self._opened.put(sheet)
            del sheet
