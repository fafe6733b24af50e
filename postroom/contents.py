"""What is inside a parcel: a sheet of JSON beside the arrays.

`jobs.json` says what all jobs of a parcel have in common (task and options) and what each is
passed; `outcomes.json` says how each ended, where, and how long it took.

numpy comes with `payload`, and is imported only where a value is packed or unpacked: a guardian,
which only says how jobs ended, stays small and starts at once.
"""

from __future__ import annotations

import enum
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from types import NoneType
from typing import TYPE_CHECKING, Any

from .errors import BadFileError
from .files import Buffer
from .parcel import Mark, Parcel, pack

if TYPE_CHECKING:
    from .payload import Decoder

VERSION = 1
_PLAIN_DEPTH = 16
# What a mark says of its parcel, so that most need not be opened to be counted.
FAILED_FLAG = "f"  # of results: at least one failed
WISHES_FLAG = "w"  # of jobs: at least one has wishes
# Sheets up to this size are remembered: jobs that are handed in one by one have the same.
_ALIKE_BYTES = 4096

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Outcome(enum.Enum):
    """How a job ended; it exists only when the job is done."""

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Options:
    """What a job asks of whoever runs it."""

    retries: int = 0
    timeout_s: float | None = None
    exclusive: bool = False
    tensors: bool = False
    pickle: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a job ended without a result."""

    outcome: Outcome
    kind: str  # the exception's class, or what happened
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Done:
    """One finished job, before it is published or after it is read."""

    value: Any = None
    failure: Failure | None = None
    seconds: float = 0.0
    nbytes: int = 0  # how large the value's arrays are


@dataclass(frozen=True)
class Maker:
    """Who made the results of a parcel."""

    agent: str
    gpu: str
    pid: int
    started_at: float  # wall clock at the first job
    attempt: int = 1


class JobSheet:
    """The jobs of one parcel, decoded one by one."""

    def __init__(self, path: str, data: Buffer, *, number: int | None = None) -> None:
        """With `number`, the parcel's own numbers begin at 0, and its first job is that one."""
        self.parcel = Parcel(path, data)
        self._decoder: Decoder | None = None
        self.nbytes = len(data)
        fields = _sheet(self.parcel, "jobs.json", "jobs")
        if number is not None and self.parcel.mark.first != 0:
            raise BadFileError(path, f"holds jobs from {self.parcel.mark.first} on, not from 0")
        try:
            self.first = self.parcel.mark.first if number is None else number
            self.count = self.parcel.mark.count
            self.task = str(fields["task"])
            self.options = _options(tuple(fields["options"].items()))
            self.names: list[str] | None = fields["names"]
            self._values = fields["values"]
        except (KeyError, TypeError, AttributeError) as error:
            raise BadFileError(path, f"has a jobs.json that lacks {error}") from None

    def arguments(self, job: int) -> dict[str, Any]:
        """What job number `job` is passed."""
        if self._decoder is None:
            from .payload import Decoder

            self._decoder = Decoder(self._values, self.parcel, pickle=self.options.pickle)
        value = self._decoder.value(job - self.first)
        if not isinstance(value, dict):
            raise BadFileError(self.parcel.path, f"passes job {job} something other than arguments")
        return value

    def plain(self, job: int) -> dict[str, Any]:
        """What job number `job` is passed, when that is plain JSON: without numpy."""
        tree = self._tree(job)
        if tree and _is_plain(tree):
            copied: dict[str, Any] = _copied(tree)  # what is read may be another's, too
            return copied
        return self.arguments(job)

    def passed(self, job: int) -> list[str]:
        """The names of what job number `job` is passed: without numpy, whatever they hold."""
        return list(self._tree(job))

    def wishes(self, job: int) -> Any:
        """What job number `job` wishes, undecoded and not to be changed: a few words of many."""
        return self._tree(job).get("wishes") or {}

    def text(self, job: int, name: str) -> str:
        """One text that job number `job` is passed, undecoded; "" when it is none."""
        value = self._tree(job).get(name)
        return value if isinstance(value, str) else ""

    def _tree(self, job: int) -> dict[str, Any]:
        try:
            trees = self._values["trees"]
            tree = trees[0] if len(trees) == 1 else trees[job - self.first]
        except (KeyError, IndexError, TypeError):
            return {}
        return tree if isinstance(tree, dict) else {}

    def name(self, job: int) -> str:
        """The label the user gave, or the number."""
        return self.names[job - self.first] if self.names else str(job)


def pack_jobs(
    first: int,
    task: str,
    options: Options,
    names: Sequence[str] | None,
    arguments: Sequence[dict[str, Any]],
    *,
    called: int | None = None,
) -> list[Buffer]:
    """Make a parcel of jobs that have task and options in common.

    An error calls the first of them by the number `called`, where that is not `first`.
    """
    text: str
    members: list[tuple[str, Sequence[Buffer]]]
    called = first if called is None else called
    if all(map(_is_json, arguments)):
        text, members = _encode(_plain_values(first, arguments)), []
    else:
        from . import payload

        text, members = payload.encode_text(
            arguments,
            first=first,
            label=lambda n: f"job {names[n] if names else called + n}: arguments",
            pickle=options.pickle,
        )
    head = _job_head(task, options, None if names is None else tuple(names))
    body = f"{head}{text}}}".encode()
    # A kernel may have an argument of that name, with anything in it.
    wishes = [passed.get("wishes") for passed in arguments]
    flags = WISHES_FLAG if any(isinstance(wish, dict) and wish for wish in wishes) else ""
    return pack(Mark("jobs", first, len(arguments), flags), [("jobs.json", [body]), *members])


@lru_cache(maxsize=64)
def _job_head(task: str, options: Options, names: tuple[str, ...] | None) -> str:
    """How the sheet of jobs begins: the same for all that differ in their values alone."""
    sheet = {"version": VERSION, "task": task, "options": vars(options), "names": names}
    return _encode(sheet)[:-1] + ',"values":'


class OutcomeSheet:
    """The outcomes of one parcel, decoded one by one."""

    def __init__(self, path: str, data: Buffer) -> None:
        self.parcel = Parcel(path, data)
        self.nbytes = len(data)
        self._decoder: Decoder | None = None
        fields = _sheet(self.parcel, "outcomes.json", "results")
        try:
            self.first = self.parcel.mark.first
            self.count = self.parcel.mark.count
            self.maker = Maker(**fields["maker"])
            self.seconds: list[float] = fields["seconds"]
            self.pickle = bool(fields["pickle"])
            self._values = fields["values"]
            self.failures = {
                int(job): Failure(**{**failure, "outcome": Outcome(failure["outcome"])})
                for job, failure in fields["failures"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadFileError(path, f"has an outcomes.json that lacks {error}") from None
        if len(self.seconds) != self.count:
            raise BadFileError(path, "has an outcomes.json of another length")
        self._failed = sorted(self.failures)

    def done(self, job: int) -> Done:
        """How job number `job` ended."""
        seconds = self.seconds[job - self.first]
        if job in self.failures:
            return Done(failure=self.failures[job], seconds=seconds)
        position = job - self.first - bisect_left(self._failed, job)
        if (plain := self._plain(position)) is not None:
            return Done(plain, seconds=seconds)
        if self._decoder is None:
            from .payload import Decoder

            self._decoder = Decoder(self._values, self.parcel, pickle=self.pickle)
        return Done(self._decoder.value(position), seconds=seconds)

    def _plain(self, position: int) -> dict[str, Any] | None:
        """A value, if it is an object of plain JSON: nobody needs numpy to read that."""
        try:
            trees = self._values["trees"]
            tree = trees[0] if len(trees) == 1 else trees[position]
        except (KeyError, IndexError, TypeError):
            return None
        return tree if isinstance(tree, dict) and _is_plain(tree) else None


def pack_outcomes(
    first: int, done: Sequence[Done], maker: Maker, *, pickle: bool = False
) -> list[Buffer]:
    """Make a parcel of outcomes; only the values of jobs that ended well are stored."""
    values = [one.value for one in done if one.failure is None]
    text: str
    members: list[tuple[str, Sequence[Buffer]]]
    if all(map(_is_json, values)):
        text, members = _encode(_plain_values(first, values)), []
    else:
        from . import payload

        text, members = payload.encode_text(values, first=first, label="result", pickle=pickle)
    body = _outcomes(first, done, maker, text, pickle=pickle)
    return pack(_results_mark(first, done), [("outcomes.json", [body]), *members])


def _results_mark(first: int, done: Sequence[Done]) -> Mark:
    flags = FAILED_FLAG if any(one.failure is not None for one in done) else ""
    return Mark("results", first, len(done), flags)


def _outcomes(
    first: int, done: Sequence[Done], maker: Maker, values: str, *, pickle: bool = False
) -> bytes:
    failures = {
        str(first + n): {**vars(one.failure), "outcome": one.failure.outcome.value}
        for n, one in enumerate(done)
        if one.failure is not None
    }
    sheet = {
        "version": VERSION,
        "maker": vars(maker),
        "seconds": [round(one.seconds, 7) for one in done],
        "pickle": pickle,
        "failures": failures,
    }
    return f'{_encode(sheet)[:-1]},"values":{values}}}'.encode()


def pack_data(value: Any) -> list[Buffer]:
    """Make a parcel of shared data."""
    from . import payload

    tree, members = payload.encode([value], label="shared")
    body = _encode({"version": VERSION, "values": tree}).encode()
    return pack(Mark("data", 0, 1), [("data.json", [body]), *members])


def unpack_data(path: str, data: Buffer) -> Any:
    """Read shared data back."""
    from . import payload

    parcel = Parcel(path, data)
    return payload.decode(_sheet(parcel, "data.json", "data").get("values"), parcel, 0)


def _plain_values(first: int, values: Sequence[Any]) -> object:
    """What `payload.encode` makes of values that stand for themselves."""
    trees = list(values)
    # Compared as text, since 1, 1.0 and True are equal, and so are dicts in another order.
    if trees and all(repr(tree) == repr(trees[0]) for tree in trees):
        del trees[1:]
    return {"first": first, "count": len(values), "arrays": {}, "trees": trees}


def _is_json(value: Any, depth: int = 0) -> bool:
    """Whether a value stands for itself, so that `payload` would leave it as it is."""
    if depth > _PLAIN_DEPTH:
        return False  # deep, or endless: payload says which
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is dict:
        return all(
            type(key) is str
            and key.isascii()
            and not key.startswith("$")
            and _is_json(item, depth + 1)
            for key, item in value.items()
        )
    if kind is list:
        return all(_is_json(item, depth + 1) for item in value)
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    return kind in (bool, NoneType) or (kind is float and isfinite(value))


def _copied(tree: Any) -> Any:
    """A copy of a plain tree, at a tenth of what `deepcopy` takes."""
    if isinstance(tree, dict):
        return {key: _copied(item) for key, item in tree.items()}
    return [_copied(item) for item in tree] if isinstance(tree, list) else tree


def _is_plain(tree: Any, depth: int = 0) -> bool:
    """Whether a tree stands for itself: no key begins with the sign of what JSON lacks."""
    if depth > _PLAIN_DEPTH:
        return False
    if isinstance(tree, dict):
        return all(
            not key.startswith("$") and _is_plain(item, depth + 1) for key, item in tree.items()
        )
    return not isinstance(tree, list) or all(_is_plain(item, depth + 1) for item in tree)


def weight(value: Any) -> int:
    """Roughly how many bytes a value takes in a parcel: enough to tell large from small."""
    if isinstance(value, dict):
        return sum(weight(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(weight(item) for item in value)
    if isinstance(value, (str, bytes)):
        return len(value)
    return int(getattr(value, "nbytes", 8))


# What comes out is shared by all who read the same bytes, and so must not be changed.
_loads_again = lru_cache(maxsize=64)(json.loads)


@lru_cache(maxsize=64)
def _options(fields: tuple[tuple[str, Any], ...]) -> Options:
    return Options(**dict(fields))


def _sheet(parcel: Parcel, name: str, kind: str) -> dict[str, Any]:
    if parcel.mark.kind != kind:
        raise BadFileError(parcel.path, f"is a parcel of {parcel.mark.kind}, not of {kind}")
    try:
        body = bytes(parcel.member(name))
        again = kind == "jobs" and len(body) <= _ALIKE_BYTES
        fields = _loads_again(body) if again else json.loads(str(body, "utf-8"))
    except KeyError:
        raise BadFileError(parcel.path, f"has no {name}") from None
    except (ValueError, RecursionError):
        raise BadFileError(parcel.path, f"has a {name} that is not JSON") from None
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        raise BadFileError(parcel.path, f"has a {name} that is not of version {VERSION}")
    return fields
