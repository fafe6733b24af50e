"""Live updates: one poll of the base for all open pages, and none while no page is open."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from ..errors import PostroomError
from ..queue.card_curves import Reading, Readings, read_curves, reading
from ..queue.rows import CardView, JobDetail, JobView, Overview
from ..store.job_ids import JobId
from .log_reader import read_log
from .queue_reader import QueueReader

POLL_S = 1.0
LONGEST_POLL_S = 30.0
PING_S = 15.0
MOST_LISTENERS = 100
# A browser that is more events behind is disconnected; it reconnects by itself.
MOST_BEHIND = 60
# GPU readings of the last ten minutes; those before them were recorded by the scheduler.
MOST_READINGS = 600
CURVES_S = 3600.0


@dataclasses.dataclass(eq=False)
class Listener:
    """One open page."""

    job: JobId | None = None
    seen: str = ""  # the fingerprint of its content
    marks: dict[str, str] = dataclasses.field(default_factory=dict)  # "out", "err": how far
    queue: asyncio.Queue[bytes | None] = dataclasses.field(
        default_factory=lambda: asyncio.Queue(MOST_BEHIND)
    )

    def send(self, event: str, data: Any) -> None:
        """Send an event; a page that is too far behind is disconnected."""
        try:
            self.queue.put_nowait(encode(event, data))
        except asyncio.QueueFull:
            self.end()

    def end(self) -> None:
        """Close the stream."""
        if self.queue.full():
            self.queue.get_nowait()
        self.queue.put_nowait(None)


def encode(event: str, data: Any) -> bytes:
    """One server-sent event; JSON holds no line break that would end it early."""
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


class LiveUpdates:
    """Polls the base while a page is open, and sends what has changed."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self._listeners: set[Listener] = set()
        self._poller: asyncio.Task[None] | None = None
        self._readings: deque[Readings] = deque(maxlen=MOST_READINGS)

    @property
    def is_full(self) -> bool:
        """Whether the limit of open pages is reached."""
        return len(self._listeners) >= MOST_LISTENERS

    @property
    def listeners(self) -> int:
        """How many pages are open."""
        return len(self._listeners)

    async def readings(self) -> list[Readings]:
        """The readings of the last hour: those of the scheduler, and those for open pages."""
        since = time.time() - CURVES_S
        recorded = await self._reader.query(lambda view: read_curves(view.base, since))
        return sorted([*recorded, *self._readings], key=lambda one: one[0])

    async def listen(self, listener: Listener) -> AsyncIterator[bytes]:
        """The event stream of one page, until it closes."""
        self._listeners.add(listener)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        try:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    async with asyncio.timeout(PING_S):
                        chunk = await listener.queue.get()
                except TimeoutError:
                    chunk = b": still here\n\n"  # only a write shows that a browser has gone
                if chunk is None:
                    return
                yield chunk
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self.close()

    def close(self) -> None:
        """Stop polling, and close all streams."""
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None
        for listener in self._listeners:
            listener.end()

    async def _poll(self) -> None:
        text = ""
        while True:
            began = time.monotonic()
            before, text = text, ""
            try:
                await self._poll_once()
            except Exception as error:  # whatever it is: the next poll may work
                text = f"The base cannot be read: {error or type(error).__name__}"
            if text or before:  # an empty text ends the trouble
                self._send_all("trouble", {"text": text})
            # Poll less often when a poll takes long, as it does in a large base; not when this
            # process was stopped for hours.
            took = time.monotonic() - began
            await asyncio.sleep(min(max(POLL_S, 3 * took), LONGEST_POLL_S))

    async def _poll_once(self) -> None:
        overview = await self._reader.overview()
        at = round(time.time(), 1)
        cards = {card.uuid: reading_of(card) for card in overview.cards}
        self._readings.append((at, cards))
        if cards:
            self._send_all("cards", {"at": at, "cards": cards})
        seen = fingerprint(overview)
        for listener in self._listeners:
            if listener.job is None and listener.seen != seen:
                listener.seen = seen
                listener.send("change", {"at": at})
        for job in {one.job for one in self._listeners if one.job is not None}:
            await self._follow(job)

    async def _follow(self, job: JobId) -> None:
        try:
            detail = await self._reader.query(lambda view: view.job(job))
        except PostroomError:
            return  # its run was removed; the page says so when it is reloaded
        seen = fingerprint_of_job(detail)
        for listener in [one for one in self._listeners if one.job == job]:
            for stream, chunk in await asyncio.to_thread(self._new_output, listener, detail):
                listener.send("log", {"stream": stream, **chunk})
            if listener.seen != seen:
                listener.seen = seen
                listener.send("job", {"state": detail.job.state})

    def _new_output(
        self, listener: Listener, detail: JobDetail
    ) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for stream, path in (("out", detail.out_path), ("err", detail.err_path)):
            chunk = read_log(self._reader.base.root, path, listener.marks.get(stream, ""))
            if chunk.mark and chunk.mark != listener.marks.get(stream):
                listener.marks[stream] = chunk.mark
                found.append((stream, dataclasses.asdict(chunk)))
        return found

    def _send_all(self, event: str, data: Any) -> None:
        for listener in self._listeners:
            listener.send(event, data)


def reading_of(card: CardView) -> Reading:
    """The values of a GPU's chart: memory in use and load, both in per cent."""
    return reading(card.memory_used_mib, card.memory_total_mib, card.utilization)


def fingerprint(overview: Overview) -> str:
    """Changes when the overview does, apart from GPU readings and durations."""
    cards = [(card.uuid, card.problem, card.agents, card.holders) for card in overview.cards]
    running = [_timeless(job) for job in overview.running]
    rest = dataclasses.replace(overview, at=0.0, cards=[], rate_per_hour=0.0, running=running)
    return _digest((cards, rest))


def fingerprint_of_job(detail: JobDetail) -> str:
    """Changes when the page of a job does, apart from durations."""
    return _digest(dataclasses.replace(detail, job=_timeless(detail.job), starts_at=None))


def _timeless(job: JobView) -> JobView:
    """A job without its running time, which the browser counts itself."""
    return job if job.ended_at else dataclasses.replace(job, seconds=None)


def _digest(shown: object) -> str:
    return hashlib.sha256(repr(shown).encode(errors="replace")).hexdigest()[:16]
