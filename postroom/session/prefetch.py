"""Opens the next parcel while a job runs: reading and checking large arguments takes time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future

from ..parcel.container import Buffer
from ..parcel.sheets import JobSheet
from ..system.background import Background


class Prefetcher:
    """A thread that opens one parcel at a time."""

    def __init__(self, place: Callable[[Buffer], Buffer | None] = lambda _: None) -> None:
        """`place` copies a parcel to where its arrays are wanted; None: they stay in their file."""
        self._place = place
        self._thread = Background(1, "postroom prefetch")
        self._opening: tuple[int, Future[JobSheet]] | None = None  # with the parcel's first job

    def begin(self, first: int, open_sheet: Callable[[], JobSheet]) -> None:
        """Open the parcel that begins with a job."""
        self.take(-1)
        self._opening = first, self._thread.begin(lambda: self._opened(open_sheet))

    def _opened(self, open_sheet: Callable[[], JobSheet]) -> JobSheet:
        sheet = open_sheet()
        if (placed := self._place(sheet.parcel.view)) is not None:
            sheet = JobSheet(sheet.parcel.path, placed, number=sheet.first)
        sheet.parcel.check()
        return sheet

    def take(self, first: int) -> JobSheet | None:
        """The parcel that begins with a job; None: it was not asked for, or cannot be opened."""
        opening, self._opening = self._opening, None
        if opening is not None:
            with contextlib.suppress(Exception):  # the job opens it again, and gets the error
                sheet = opening[1].result()
                return sheet if opening[0] == first else None
        return None

    def close(self) -> None:
        """End the thread."""
        self.take(-1)
        self._thread.close()
