"""What was learned about jobs: how much memory each kind needs, kept on disk across restarts.

There is one file per type of job (`file::function`), written whole under a lock. It holds one row
for each way of calling the job that was seen. Rows of an earlier version of the code are dropped.

When do arguments matter? Two calls are of one kind until they differ in an argument that may set
sizes: the shape of an array, a whole number, a word, a switch. Then each call is measured. If two
such calls need the same, the arguments in which they differ are taken not to matter, for numbers up
to twice the largest seen. If they need different amounts, the arguments matter. So a sweep over
seeds costs one more measurement, and batch sizes 1 and 512 are two kinds. A later row corrects a
wrong generalisation.

What was learned can fall. A peak is the largest of the last RECENT successful runs, so one run that
needed more, or that was measured with leftovers of another, is forgotten by and by. An amount that
was too little is forgotten after DOUBTED successful runs in a row that needed no more than it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from filelock import FileLock

from ...errors import GpuError
from ...system.regular_file import open_regular
from ...system.shared_folder import lock_is_free
from .packing import STEP_MIB, Learned

VERSION = 1
ROWS = 64  # per type; the oldest are dropped
ALIKE = 1.05  # peaks within this factor, or within a step, count as equal
RECENT = 10  # runs whose largest peak counts
DOUBTED = 3


@dataclass(frozen=True)
class Kind:
    """One way of calling one version of one function."""

    type: str  # file::function, or a name that the user chose
    code: str = ""  # which version of the code
    call: Mapping[str, Any] = field(default_factory=dict)  # argument: value that may set sizes


@dataclass(frozen=True)
class ProfileRow:
    """What was seen of one way of calling a job."""

    call: Mapping[str, Any]
    peak_mib: int | None = None  # on one card, CUDA context included
    at_least_mib: int = 0  # with this much it ran out of memory
    seconds: float | None = None
    runs: int = 0
    failures: int = 0
    seen_at: float = 0.0
    recent: tuple[int, ...] = ()  # the peaks of the last runs, the newest last

    @property
    def peaks(self) -> tuple[int, ...]:
        """The peaks of the last runs; of a first run, its own."""
        return self.recent or (() if self.peak_mib is None else (self.peak_mib,))

    def merge(self, new: ProfileRow) -> ProfileRow:
        """Return it with what a later run has shown; only a successful run lowers anything."""
        peaks = self.peaks
        if new.runs or max(new.peaks, default=0) > max(peaks, default=0):
            peaks = (*peaks, *new.peaks)[-RECENT:]
        at_least_mib = max(self.at_least_mib, new.at_least_mib)
        if new.at_least_mib:
            peaks = tuple(peak for peak in peaks if peak > at_least_mib)
        elif len(peaks) >= DOUBTED and max(peaks[-DOUBTED:]) <= at_least_mib:
            at_least_mib = 0
        peak_mib = max(peaks, default=None)
        if peak_mib is not None and peak_mib <= at_least_mib:
            peak_mib = None  # it was too little: measure again
        return ProfileRow(
            self.call,
            peak_mib,
            at_least_mib,
            new.seconds if new.seconds is not None else self.seconds,
            self.runs + new.runs,
            self.failures + new.failures,
            max(self.seen_at, new.seen_at),
            peaks,
        )


@dataclass(frozen=True)
class Profile:
    """Everything that is known of one type."""

    type: str
    code: str = ""
    rows: tuple[ProfileRow, ...] = ()

    def learned(self, kind: Kind) -> Learned:
        """Return what is known of a kind, from its own row or from similar rows."""
        if kind.code != self.code:
            return Learned()
        own = next((row for row in self.rows if row.call == kind.call), None)
        if own is not None:
            return Learned(own.peak_mib, own.at_least_mib)
        immaterial = self._immaterial()
        alike = [
            row
            for row in self.rows
            if row.peak_mib is not None
            and all(
                name in immaterial and _covers(immaterial[name], kind.call.get(name))
                for name in _differences(row.call, kind.call)
            )
        ]
        return Learned(max((row.peak_mib or 0 for row in alike), default=None))

    def _immaterial(self) -> dict[str, float]:
        """Return the arguments that do not matter, with the largest value seen of each."""
        known = [row for row in self.rows if row.peak_mib is not None]
        found: dict[str, float] = {}
        material: set[str] = set()
        for place, row in enumerate(known):
            for other in known[:place]:
                differences = _differences(row.call, other.call)
                if _alike(row.peak_mib or 0, other.peak_mib or 0):
                    for name in differences:
                        sizes = (_size(row.call.get(name)), _size(other.call.get(name)))
                        found[name] = max(found.get(name, 0.0), *sizes)
                elif len(differences) == 1:
                    material |= differences
        return {name: size for name, size in found.items() if name not in material}

    def merge(self, kind: Kind, row: ProfileRow) -> Profile:
        """Return it with one more run; another version of the code drops all earlier rows."""
        rows = list(self.rows) if kind.code == self.code else []
        same = next((old for old in rows if old.call == row.call), None)
        if same is not None:
            rows.remove(same)
            row = same.merge(row)
        return Profile(self.type, kind.code, (*rows, row)[-ROWS:])

    def encode(self) -> dict[str, Any]:
        """Return what goes into its file."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def decode(cls, value: Any) -> Profile:
        """Read what `encode` wrote; raise ValueError, KeyError or TypeError on anything else."""
        if value["version"] != VERSION:
            raise ValueError("another version")
        rows = tuple(
            ProfileRow(**{**row, "recent": tuple(row.get("recent", ()))}) for row in value["rows"]
        )
        for row in rows:
            if not isinstance(row.call, dict) or not isinstance(row.peak_mib, (int, type(None))):
                raise TypeError("not a row")
            if not all(isinstance(peak, int) for peak in row.recent):
                raise TypeError("not a peak")
        return cls(str(value["type"]), str(value["code"]), rows)


class Profiles:
    """The folder of profiles: POSTROOM_PROFILES, or this user's state folder."""

    def __init__(self, where: str | None = None) -> None:
        self.where = where or os.environ.get("POSTROOM_PROFILES") or _default()
        try:
            os.makedirs(self.where, 0o700, exist_ok=True)
        except OSError as error:
            raise self._unusable(error.strerror) from None

    def _unusable(self, why: str | None) -> GpuError:
        return GpuError(
            f"what is learned about memory cannot be kept in {self.where}: {why}; set "
            "POSTROOM_PROFILES to a folder that you can write to"
        )

    def writable(self) -> Profiles:
        """Return itself, or raise an error if nothing can be learned here."""
        if not os.access(self.where, os.W_OK | os.X_OK):
            raise self._unusable("you may not write there")
        return self

    def _path(self, type_: str) -> str:
        digest = hashlib.sha256(type_.encode()).hexdigest()[:16]
        plain = "".join(c if c.isalnum() else "_" for c in type_.rpartition("::")[2])[:40]
        return os.path.join(self.where, f"{plain}-{digest}")

    def get(self, type_: str) -> Profile:
        """Return what is known of a type; a file that is not valid counts as missing."""
        return _read(f"{self._path(type_)}.json") or Profile(type_)

    def learned(self, kind: Kind) -> Learned:
        """Return what is known of a kind."""
        return self.get(kind.type).learned(kind)

    def add(self, kind: Kind, row: ProfileRow) -> None:
        """Add a run."""
        with self._mutex():
            profile = replace(self.get(kind.type), type=kind.type).merge(kind, row)
            path = f"{self._path(kind.type)}.json"
            temporary = f"{path}.{os.getpid()}.new"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(profile.encode(), file)
            os.replace(temporary, path)

    def forget(self, type_: str) -> bool:
        """Forget a type; False if nothing was known."""
        try:
            os.unlink(f"{self._path(type_)}.json")
        except FileNotFoundError:
            return False
        return True

    def all(self) -> list[Profile]:
        """Return every profile, by name."""
        paths = [os.path.join(self.where, name) for name in os.listdir(self.where)]
        found = [_read(path) for path in paths if path.endswith(".json")]
        return sorted(filter(None, found), key=lambda profile: profile.type)

    def try_measure(self, type_: str) -> Measuring | None:
        """Return the right to measure a type, or None if another process has it."""
        path = f"{self._path(type_)}.measuring"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error.strerror) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return Measuring(fd)

    def is_measured(self, type_: str) -> bool:
        """Whether a process measures a type now."""
        with suppress(OSError), open(f"{self._path(type_)}.measuring", "rb") as file:
            return not lock_is_free(file.fileno())
        return False

    def _mutex(self) -> FileLock:
        return FileLock(os.path.join(self.where, "mutex"), mode=0o600)


class Measuring:
    """The right to measure a type: a file lock, which ends when its holder dies.

    Without a descriptor, a job is measured beside one that has the right, on a card that was idle.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd: int | None = fd

    def close(self) -> None:
        """Release the right to measure."""
        if self._fd is not None:
            # Unlock, not just close: children that were forked meanwhile have the descriptor, too.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = None


# The profiles that were read, and of which file: a short call asks for its own each time, and to
# decode one takes up to a millisecond. A file is only ever replaced by another.
_known: dict[str, tuple[tuple[int, int, int], Profile]] = {}


def _read(path: str) -> Profile | None:
    try:
        found = os.stat(path)
        file_id = (found.st_ino, found.st_mtime_ns, found.st_size)
        known_id, profile = _known.get(path, (None, None))
        if profile is None or known_id != file_id:
            with open_regular(path) as file:
                profile = Profile.decode(json.loads(file.read()))
            _known[path] = file_id, profile
        return profile
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _default() -> str:
    import platformdirs

    return os.path.join(platformdirs.user_state_dir("postroom"), "profiles")


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


def _alike(one: int, other: int) -> bool:
    low, high = sorted((one, other))
    return high <= max(low * ALIKE, low + STEP_MIB)


def _size(value: Any) -> float:
    """Return the size of a value, by which values of an argument are compared; 0 for a word."""
    if isinstance(value, (int, float)):
        return abs(float(value))
    if isinstance(value, list):  # a shape
        size = 1.0
        for part in value:
            size *= part if isinstance(part, (int, float)) else 1.0
        return size
    return 0.0


def _covers(largest: float, value: Any) -> bool:
    return _size(value) <= 2 * largest
