"""A mirror of a base by hard links: what a cleaner removes can still be audited."""

from __future__ import annotations

import contextlib
import os

POOLS = ("job_pool", "result_pool", "attempts")
# Time stamps are coarse: within this time a folder may change twice and show one change.
SETTLED_S = 0.1


class Mirror:
    """Links every file of a run's jobs, results and notes; a link shows what becomes of a file."""

    def __init__(self, base: str, folder: str) -> None:
        self.folder = folder
        self._base = base
        self._stamp = f"{folder}/stamp"
        self._seen: dict[str, int] = {}  # when a folder was changed that is mirrored completely
        for pool in POOLS:
            os.makedirs(f"{folder}/{pool}")
        with open(self._stamp, "w", encoding="ascii"):
            pass

    @property
    def stamp(self) -> str:
        """A file whose time stamp says when the last complete pass began."""
        return self._stamp

    def update(self, now: float) -> None:
        """Link what is new."""
        for pool in POOLS:
            with contextlib.suppress(FileNotFoundError):
                for run in os.listdir(f"{self._base}/{pool}"):
                    with contextlib.suppress(FileNotFoundError):
                        self._link(f"{pool}/{run}", now)
        os.utime(self._stamp, (now, now))

    def _link(self, folder: str, now: float) -> None:
        source, target = f"{self._base}/{folder}", f"{self.folder}/{folder}"
        changed = os.stat(source).st_mtime_ns
        if self._seen.get(folder) == changed:
            return
        os.makedirs(target, exist_ok=True)
        there = set(os.listdir(target))
        for name in os.listdir(source):
            if name not in there and name.endswith((".npz", ".log", ".json")):
                with contextlib.suppress(FileNotFoundError):
                    os.link(f"{source}/{name}", f"{target}/{name}")
        if now - changed / 1e9 > SETTLED_S:
            self._seen[folder] = changed
