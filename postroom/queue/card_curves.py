"""The curves of the GPUs: memory and load, recorded by the acting scheduler, for the page.

    log/curves.jsonl     {"at": 1794970000.0, "cards": {"GPU-...": [41.5, 98]}}    both in per cent

Only the recorder of the acting scheduler writes it (`use_recorder`). When it is full, its newer
half stays. It may be deleted at any time, and a line that cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from ..gpus.cards.inventory import Card
from ..store.base import Base
from ..store.files import Files, replace_file
from ..system.regular_file import open_regular

# Memory and load of a GPU, each in per cent; None: not known.
Reading = list[float | None]
Readings = tuple[float, dict[str, Reading]]

# With eight GPUs, half of it is three hours.
MOST_BYTES = 1 << 20


def reading(used_mib: int | None, total_mib: int, load: float | None) -> Reading:
    """One reading of a GPU."""
    memory = round(100 * used_mib / total_mib, 1) if used_mib is not None and total_mib else None
    return [memory, load]


class CurveRecorder:
    """Writes down what the GPUs do, whether or not somebody looks."""

    def __init__(self, files: Files, base: Base) -> None:
        self._files = files
        self._base = base

    def add(self, now: float, cards: Sequence[Card]) -> None:
        """Record one reading of each GPU."""
        found = {
            card.uuid: reading(card.used_mib, card.memory_mib, card.utilisation) for card in cards
        }
        if found:
            with contextlib.suppress(OSError):  # a full disk costs the curves, and nothing else
                self._write(json.dumps({"at": round(now, 1), "cards": found}).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        path = self._base.curves
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            os.write(fd, line)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if size > MOST_BYTES:
            newer = self._files.tail(path, MOST_BYTES // 2).partition(b"\n")[2]
            replace_file(self._files, self._base.temporary(), path, newer)


def read_curves(base: Base, since: float) -> list[Readings]:
    """What was recorded after a time, oldest first."""
    found = []
    with contextlib.suppress(OSError), open_regular(base.curves) as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                said = json.loads(line)
                if since <= float(said["at"]):
                    cards = {
                        str(uuid): [_number(memory), _number(load)]
                        for uuid, (memory, load) in said["cards"].items()
                    }
                    found.append((float(said["at"]), cards))
    return found


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None
