"""Postroom itself, driven as its users drive it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from postroom.gpus.cards.gpu_list import SlotSpec
from postroom.jobs import Job
from postroom.master import Master
from postroom.session.sessions import Sessions
from postroom.store.base import create_base

from .lines import IDEAL, US, Figures, Sizes
from .scratch import scratch
from .systems import Kernel, measure

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@contextlib.contextmanager
def post_room(
    *, sessions: int = 2, durable: bool = False, preload: str = "numpy"
) -> Iterator[Master]:
    """A base in a folder of its own, with warm sessions on invented cards, and a Master."""
    with scratch() as folder:
        os.mkdir(f"{folder}/ledger", 0o700)
        os.environ["POSTROOM_LEDGER"] = f"{folder}/ledger"
        os.environ["POSTROOM_FAKE_GPUS"] = f"{max(sessions, 1)}x24G"
        os.environ["POSTROOM_PRELOAD"] = preload
        base = create_base(f"{folder}/base")
        names = [str(number) for number in range(sessions)]
        running = Sessions(base, say=_quiet)
        running.start([SlotSpec(name, name) for name in names], outlive=True)
        try:
            with Master(base.root, import_folder=PROJECT, durable=durable) as master:
                yield master
        finally:
            running.stop(names, now=True)
            running.wait()


class Postroom:
    """The system as the benchmark sees it."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._pool = master.open()

    def call(self, kernel: Kernel, **arguments: Any) -> Any:
        return self._pool.submit(Job(kernel, **arguments)).result()

    def run(self, kernel: Kernel, **arguments: Any) -> Any:
        return self._master.run([Job(kernel, **arguments)]).results()[0]

    def each(self, kernel: Kernel, jobs: Iterable[dict[str, Any]]) -> list[Any]:
        receipts = [self._pool.submit(Job(kernel, **arguments)) for arguments in jobs]
        return [receipt.result() for receipt in receipts]

    def batch(self, kernel: Kernel, jobs: Sequence[dict[str, Any]]) -> list[Any]:
        return self._master.run([Job(kernel, **arguments) for arguments in jobs]).results()

    def stream(self, kernel: Kernel, jobs: Sequence[dict[str, Any]]) -> list[Any]:
        return self.batch(kernel, jobs)

    def share(self, kernel: Kernel, data: Any, jobs: Sequence[dict[str, Any]]) -> list[Any]:
        listed = [Job(kernel, **arguments) for arguments in jobs]
        return self._master.run(listed, shared=data).results()


def postroom(sizes: Sizes) -> Figures:
    """Two warm sessions and a Master."""
    with post_room() as master:
        figures = measure(US, Postroom(master), sizes)
    for size in ("16", "4", "1"):
        figures[f"ideal {size}"] = {**figures[f"stream {size}"], IDEAL: 100.0}
    return figures


def _quiet(text: str) -> None:
    if "POSTROOM_BENCH_TALK" in os.environ:
        print(text, file=sys.stderr)
