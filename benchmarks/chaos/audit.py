"""Reads a run from its folder with no code of Postroom's, only zipfile and json.

A program that is checked with its own code repeats its own mistakes. This reader knows only the
documented format: a parcel is a zip named by its first job, with a JSON sheet inside; an append log
is a file of such zips, each behind a line that says what and where it is.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Findings:
    """What the folder says about one run."""

    asked: int = 0
    covers: Counter[int] = field(default_factory=Counter)  # job: by how many result parcels
    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    written_at: dict[int, float] = field(default_factory=dict)
    result_parcels: int = 0
    notes: int = 0

    @property
    def lost(self) -> list[int]:
        """Jobs that were submitted and have no outcome."""
        return [job for job in range(self.asked) if job not in self.covers]

    @property
    def poisoned(self) -> list[int]:
        """Jobs that were given up, because three workers died while running them."""
        return [job for job, why in self.failures.items() if why.startswith("lost: poison")]

    @property
    def doubled(self) -> list[int]:
        """Jobs that two result parcels cover."""
        return [job for job, parcels in self.covers.items() if parcels > 1]

    @property
    def strangers(self) -> list[int]:
        """Results of jobs that nobody submitted."""
        return [job for job in self.covers if not 0 <= job < self.asked]


def audit(base: str, run: str) -> Findings:
    """Count every job of a run."""
    found = Findings()
    for first, sheet in _asked(f"{base}/job_pool/{run}"):
        assert first == found.asked, f"the jobs of {run} have a gap or overlap at {first}"
        found.asked += sheet["values"]["count"]
    for first, sheet, path in _parcels(f"{base}/result_pool/{run}", "outcomes.json"):
        found.result_parcels += 1
        count = len(sheet["seconds"])
        found.covers.update(range(first, first + count))
        failures = {int(job): failure for job, failure in sheet["failures"].items()}
        for job, failure in failures.items():
            found.failures[job] = f"{failure['outcome']}: {failure['message']}"
        good = [n for n in range(first, first + count) if n not in failures]
        # The storm's kernel returns plain numbers, which lie in the sheet itself.
        found.values.update(zip(good, sheet["values"]["trees"], strict=True))
        written = os.stat(path).st_mtime
        found.written_at.update(dict.fromkeys(range(first, first + count), written))
    attempts = f"{base}/attempts/{run}"
    found.notes = len(os.listdir(attempts)) if os.path.isdir(attempts) else 0
    return found


_RECORD = re.compile(
    rb"(jlog/1 ([0-9]{9}) ([0-9]{7}) ([0-9a-f]{11}) ([0-9a-f]{8}) ([0-9a-f]{8}) )([0-9a-f]{8})\n"
)


def _asked(folder: str) -> Iterator[tuple[int, Any]]:
    """The first number and the sheet of every parcel of jobs."""
    with open(f"{folder}/jobs.log", "rb") as file:
        append_log = file.read()
    for match in _RECORD.finditer(append_log):
        number, count = int(match[2]), int(match[3])
        at, length, crc = (int(match[group], 16) for group in (4, 5, 6))
        body = append_log[at + 64 : at + 64 + length + -length % 64]
        whole = zlib.crc32(match[1]) == int(match[7], 16) and zlib.crc32(body) == crc
        if at == match.start() and whole:
            body = body[:length]
            if body.startswith(b"slip/1 "):  # the parcel is a file of its own
                with open(f"{folder}/{body.split()[1].decode('ascii')}.npz", "rb") as file:
                    body = file.read()
            with zipfile.ZipFile(io.BytesIO(body)) as archive:
                assert archive.testzip() is None, f"record {number} of {folder} is damaged"
                sheet = json.loads(archive.read("jobs.json"))
            assert sheet["values"]["count"] == count
            yield number, sheet


def _parcels(folder: str, member: str) -> Iterator[tuple[int, Any, str]]:
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
        if name.endswith(".npz"):
            path = f"{folder}/{name}"
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None, f"{path} is damaged"
                yield int(name.removesuffix(".npz")), json.loads(archive.read(member)), path
