"""The JSON sheet in a parcel, beside the arrays.

`jobs.json` says what all jobs of a parcel have in common (task and options) and the arguments of
each; `outcomes.json` says how each job ended, where, and how long it took.

numpy is imported only where arrays are packed or unpacked: a guardian, which only says how jobs
ended, stays small and starts fast.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..errors import BadFileError, OtherVersionError
from .container import Buffer, Parcel, pack
from .jsonable import copied, is_json, is_plain, plain_values
from .trailer import Trailer

if TYPE_CHECKING:
    from .decode import Decoder, Tree

VERSION = 1
# The flags of a trailer: most parcels need not be opened to be counted.
FAILED_FLAG = "f"  # of results: at least one failed
SCHEDULING_FLAG = "w"  # of jobs: at least one has scheduling options
# Sheets up to this size are cached: jobs that are submitted one by one have the same.
_ALIKE_BYTES = 4096

_encode = json.JSONEncoder(separators=(",", ":")).encode

# The text of a sheet of outcomes before the times, and between them.
_SECONDS = b'{"seconds":['
_STARTED = '],"maker":{"started_at":'
# ... before its values, and what stands for them where all else is parsed.
_VALUES = b',"values":'
_NO_VALUES = _VALUES + b"null}"


class Outcome(enum.Enum):
    """How a job ended; it exists only when the job is done."""

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    LOST = "lost"
    CANCELLED = "cancelled"


class JobOptions(NamedTuple):
    """How a session is to run a job."""

    retries: int = 0
    timeout_s: float | None = None
    exclusive: bool = False
    tensors: bool = False
    pickle: bool = False
    batched: bool = False  # jobs that are alike may be passed to the kernel in one call
    rerun_of: str = ""  # the id of the failed job that it replaces: its kernel may be edited

    def checked(self) -> JobOptions:
        """The same; ValueError names an option that makes no sense."""
        limit = self.timeout_s
        if type(self.retries) is not int or self.retries < 0:
            raise ValueError(f"retries={self.retries!r:.40}: give a whole number, 0 or more")
        if limit is not None and (not isinstance(limit, (int, float)) or not 0 < limit < 1e9):
            raise ValueError(f"timeout_s={limit!r:.40}: give a number of seconds above 0")
        for name in ("exclusive", "tensors", "pickle", "batched"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}={getattr(self, name)!r:.40}: give True or False")
        if type(self.rerun_of) is not str:
            raise ValueError(f"rerun_of={self.rerun_of!r:.40}: give the id of a job")
        return self


@dataclass(frozen=True)
class Failure:
    """Why a job ended without a result."""

    outcome: Outcome
    kind: str  # the exception's class, or what happened
    message: str
    traceback: str = ""
    exception: str = ""  # of a call: a pickle, as text

    def encode(self) -> dict[str, str]:
        """As JSON."""
        said = {**vars(self), "outcome": self.outcome.value}
        if not self.exception:
            del said["exception"]
        return said

    @property
    def text(self) -> str:
        """Why, in one line; a kind that repeats the outcome, such as "lost", is left out."""
        if self.kind == self.outcome.value:
            return self.message
        return f"{self.kind}: {self.message}"


# What this version knows of each part of a sheet.
_FIELDS = frozenset(
    ("version", "task", "options", "names", "values", "seconds", "maker", "pickle", "failures")
)
_OPTIONS = frozenset(JobOptions._fields)
_FAILURE = frozenset(("outcome", "kind", "message", "traceback", "exception"))
_RAN_BY = frozenset(("agent", "gpu", "pid", "started_at", "attempt"))


class JobEnd(NamedTuple):
    """One finished job, before it is published or after it is read."""

    value: Any = None
    failure: Failure | None = None
    seconds: float = 0.0
    nbytes: int = 0  # how large the value's arrays are


class RanBy(NamedTuple):
    """Which agent ran the jobs of a parcel of results."""

    agent: str
    gpu: str
    pid: int
    started_at: float  # wall clock at the first job
    attempt: int = 1


@cache
def _arrays() -> tuple[Any, Any]:
    """The modules that pack and unpack arrays, which import numpy."""
    from . import decode, encode

    return encode, decode


class _StoredValues:
    """The values of a parcel as its sheet describes them; equal sheets share them."""

    __slots__ = ("_tree", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._tree: Tree | None = None

    def decoder(self, parcel: Parcel, *, pickle: bool) -> Decoder:
        """The decoder that builds them from the arrays of a parcel."""
        _, decoder = _arrays()
        if self._tree is None:
            with suppress(ValueError):  # the decoder finds the same, and names the file
                self._tree = decoder.Tree(self.raw)
        made: Decoder = decoder.Decoder(self._tree or self.raw, parcel, pickle=pickle)
        return made

    def tree(self, position: int) -> Any:
        """One value, undecoded and not to be changed; None: there is none."""
        try:
            trees = self.raw["trees"]
            return trees[0] if len(trees) == 1 else trees[position]
        except (KeyError, IndexError, TypeError):
            return None


class _JobHead(NamedTuple):
    """What a sheet of jobs says."""

    task: str
    options: JobOptions
    names: list[str] | None
    values: _StoredValues


class JobSheet:
    """The jobs of one parcel, decoded one by one."""

    def __init__(self, path: str, data: Buffer, *, number: int | None = None) -> None:
        """With `number`, the numbers in the parcel begin at 0, and its first job is that one."""
        self.parcel = parcel = Parcel(path, data)
        self._decoder: Decoder | None = None
        self.nbytes = len(data)
        body = _sheet(parcel, "jobs.json", "jobs")
        if number is not None and parcel.trailer.first != 0:
            raise BadFileError(path, f"holds jobs from {parcel.trailer.first} on, not from 0")
        self.first = parcel.trailer.first if number is None else number
        self.count = parcel.trailer.jobs
        try:
            head = _read_alike(body, _read_jobs_again) or _read_jobs(body)
        except ValueError as error:
            raise _unreadable(path, "jobs.json", error) from None
        self.task, self.options, self.names, self._values = head
        if self.names is not None and len(self.names) != self.count:
            raise BadFileError(path, "has a jobs.json of another length")

    def arguments(self, job: int) -> dict[str, Any]:
        """The arguments of a job."""
        if self._decoder is None:
            self._decoder = self._values.decoder(self.parcel, pickle=self.options.pickle)
        value = self._decoder.value(job - self.first)
        if not isinstance(value, dict):
            raise BadFileError(self.parcel.path, f"passes job {job} something other than arguments")
        return value

    def arguments_of(self, first: int, stop: int) -> list[dict[str, Any]]:
        """The arguments of neighbours."""
        self.arguments(first)
        assert self._decoder is not None
        found = self._decoder.values(first - self.first, stop - self.first)
        if list(map(type, found)).count(dict) < len(found):
            return [self.arguments(job) for job in range(first, stop)]  # says which is none
        return found

    def plain(self, job: int) -> dict[str, Any]:
        """The arguments of a job; without numpy when they are plain JSON."""
        tree = self._tree(job)
        if tree and is_plain(tree):
            own: dict[str, Any] = copied(tree)  # equal sheets share the tree
            return own
        return self.arguments(job)

    def passed(self, job: int) -> list[str]:
        """The names of a job's arguments, without decoding them."""
        return list(self._tree(job))

    def scheduling(self, job: int) -> Any:
        """The scheduling options of a job, as JSON; not to be changed."""
        found = self._tree(job).get("scheduling")
        return (found if is_plain(found) else self.arguments(job)["scheduling"]) or {}

    def number(self, job: int, name: str) -> float:
        """One argument of a job that is a number; 0 when it is not."""
        value = self._tree(job).get(name)
        return value if isinstance(value, (int, float)) else 0

    def text(self, job: int, name: str) -> str:
        """One argument of a job that is a text; "" when it is not."""
        value = self._tree(job).get(name)
        return value if isinstance(value, str) else ""

    def _tree(self, job: int) -> dict[str, Any]:
        tree = self._values.tree(job - self.first)
        return tree if isinstance(tree, dict) else {}

    def name(self, job: int) -> str:
        """The label the user gave, or the number."""
        return self.names[job - self.first] if self.names else str(job)


def pack_jobs(
    first: int,
    task: str,
    options: JobOptions,
    names: Sequence[str] | None,
    arguments: Sequence[dict[str, Any]],
    *,
    called: int | None = None,
) -> list[Buffer]:
    """Make a parcel of jobs that have task and options in common.

    An error calls the first of them by the number `called`, if that is not `first`.
    """
    text: str
    members: list[tuple[str, Sequence[Buffer]]]
    called = first if called is None else called
    if all(map(is_json, arguments)):
        text, members = _encode(plain_values(arguments)), []
    else:
        text, members = _arrays()[0].encode_text(
            arguments,
            first=first,
            label=lambda n: f"job {names[n] if names else called + n}:",
            pickle=options.pickle,
        )
    head = _job_head(task, options, None if names is None else tuple(names))
    body = f"{head}{text}}}".encode()
    # A kernel may have an argument of that name, with anything in it.
    scheduling = [passed["scheduling"] for passed in arguments if "scheduling" in passed]
    flags = SCHEDULING_FLAG if any(isinstance(one, dict) and one for one in scheduling) else ""
    return pack(Trailer("jobs", first, len(arguments), flags), [("jobs.json", [body]), *members])


@lru_cache(maxsize=64)
def _job_head(task: str, options: JobOptions, names: tuple[str, ...] | None) -> str:
    """The beginning of a sheet of jobs, before the values."""
    said = options._asdict()
    for name in ("rerun_of", "batched"):
        if not said[name]:
            del said[name]
    sheet = {"version": VERSION, "task": task, "options": said, "names": names}
    return _encode(sheet)[:-1] + ',"values":'


class OutcomeSheet:
    """The outcomes of one parcel, decoded one by one."""

    def __init__(self, path: str, data: Buffer) -> None:
        self.parcel = parcel = Parcel(path, data)
        self.nbytes = len(data)
        self._decoder: Decoder | None = None
        self.first = parcel.trailer.first
        self.count = parcel.trailer.jobs
        try:
            sheet = _read_outcomes(_sheet(parcel, "outcomes.json", "results"))
        except ValueError as error:
            raise _unreadable(path, "outcomes.json", error) from None
        self.seconds, started_at, head = sheet
        self.ran_by = RanBy(head.agent, head.gpu, head.pid, started_at, head.attempt)
        self.pickle, self.failures, self._values = head.pickle, head.failures, head.values
        if len(self.seconds) != self.count:
            raise BadFileError(path, "has an outcomes.json of another length")

    def done(self, job: int) -> JobEnd:
        """How a job ended."""
        seconds = self.seconds[job - self.first]
        if job in self.failures:
            return JobEnd(failure=self.failures[job], seconds=seconds)
        return JobEnd(self.value(job), seconds=seconds)

    def value(self, job: int) -> Any:
        """What a job that ended well has returned."""
        position = job - self.first - sum([failed < job for failed in self.failures])
        if self._decoder is None:
            tree = self._values.tree(position)
            if isinstance(tree, dict) and is_plain(tree):
                # This needs no numpy; equal sheets share the tree.
                return copied(tree)
            self._decoder = self._values.decoder(self.parcel, pickle=self.pickle)
        return self._decoder.value(position)

    def values(self, first: int, stop: int) -> list[Any]:
        """What neighbours returned that all ended well."""
        one = self.value(first)  # makes the decoder, if it takes one
        if self.failures or self._decoder is None:
            return [one, *map(self.value, range(first + 1, stop))]
        return self._decoder.values(first - self.first, stop - self.first)


def pack_outcomes(
    first: int, done: Sequence[JobEnd], ran_by: RanBy, *, pickle: bool = False
) -> list[Buffer]:
    """Make a parcel of outcomes; only the values of jobs that ended well are stored."""
    values = [one.value for one in done if one.failure is None]
    text: str
    members: list[tuple[str, Sequence[Buffer]]]
    if all(map(is_json, values)):
        text, members = _encode(plain_values(values)), []
    else:
        text, members = _arrays()[0].encode_text(values, first=first, label="result", pickle=pickle)
    body = _outcomes(first, done, ran_by, text, pickle=pickle)
    return pack(_results_trailer(first, done), [("outcomes.json", [body]), *members])


def _results_trailer(first: int, done: Sequence[JobEnd]) -> Trailer:
    flags = FAILED_FLAG if [one.failure for one in done].count(None) < len(done) else ""
    return Trailer("results", first, len(done), flags)


def _outcomes(
    first: int, done: Sequence[JobEnd], ran_by: RanBy, values: str, *, pickle: bool = False
) -> bytes:
    failures = {
        str(first + n): one.failure.encode()
        for n, one in enumerate(done)
        if one.failure is not None
    }
    # By hand, since it is written for every letter. What always differs comes first, with a fixed
    # number of digits, so that similar parcels have the same size.
    seconds = ",".join([f"{one.seconds:.7f}" for one in done])
    rest = _outcomes_end(ran_by.agent, ran_by.gpu, ran_by.pid, ran_by.attempt, pickle)
    failed = _encode(failures) if failures else "{}"
    return (
        f'{{"seconds":[{seconds}{_STARTED}{ran_by.started_at:.6f},{rest}{failed},"values":{values}}}'
    ).encode()


@lru_cache(maxsize=64)
def _outcomes_end(agent: str, gpu: str, pid: int, attempt: int, pickle: bool) -> str:
    """The text of a sheet of outcomes between the start time and the failures."""
    ran_by = _encode({"agent": agent, "gpu": gpu, "pid": pid, "attempt": attempt})[1:]
    return f'{ran_by},"version":{VERSION},"pickle":{_encode(pickle)},"failures":'


class _OutcomeHead(NamedTuple):
    """What a sheet of outcomes says, without the times."""

    agent: str
    gpu: str
    pid: int
    attempt: int
    pickle: bool
    failures: dict[int, Failure]
    values: _StoredValues


def _read_outcomes(body: bytes) -> tuple[list[float], float, _OutcomeHead]:
    """Seconds, start time and the rest of a sheet of outcomes; ValueError if it is none.

    The rest is often the same in similar sheets, and then parsed once.
    """
    seconds, _, rest = body.partition(_STARTED.encode())
    started_at, _, rest = rest.partition(b",")
    if rest and len(rest) <= _ALIKE_BYTES and seconds.startswith(_SECONDS):
        with suppress(ValueError):  # not in the form that we write: parse it as a whole
            each = [float(one) for one in seconds[len(_SECONDS) :].split(b",")]
            head = _read_alike(b'{"maker":{' + rest, _read_outcome_head_again)
            if head is not None:
                return each, float(started_at), head
    fields = _fields(body)
    try:
        each = [float(one) for one in fields["seconds"]]
        return each, float(fields["maker"].pop("started_at")), _outcome_head(fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks {error}") from None


def _outcome_head(fields: dict[str, Any]) -> _OutcomeHead:
    try:
        failures = {
            int(job): Failure(**{**_only(_FAILURE, failure), "outcome": _outcome(failure)})
            for job, failure in fields["failures"].items()
        }
        ran_by, values = _only(_RAN_BY, fields["maker"]), _StoredValues(fields["values"])
        return _OutcomeHead(
            **ran_by, pickle=bool(fields["pickle"]), failures=failures, values=values
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks {error}") from None


def _outcome(failure: dict[str, Any]) -> Outcome:
    try:
        return Outcome(failure["outcome"])
    except ValueError as error:
        raise _OtherSheetError(str(error)) from None


@lru_cache(maxsize=64)
def _read_outcome_head_again(text: bytes) -> _OutcomeHead:
    return _outcome_head(_fields(text))


def pack_data(value: Any) -> list[Buffer]:
    """Make a parcel of shared data."""
    tree, members = _arrays()[0].encode([value], label="shared", pickle=None)
    body = _encode({"version": VERSION, "values": tree}).encode()
    return pack(Trailer("data", 0, 1), [("data.json", [body]), *members])


def unpack_data(path: str, data: Buffer) -> Any:
    """Read shared data back."""
    parcel = Parcel(path, data)
    try:
        fields = _fields(_sheet(parcel, "data.json", "data"))
    except ValueError as error:
        raise _unreadable(path, "data.json", error) from None
    return _arrays()[1].decode(fields.get("values"), parcel, 0)


def _sheet(parcel: Parcel, name: str, kind: str) -> bytes:
    """The text of a parcel's sheet."""
    if parcel.trailer.kind != kind:
        raise BadFileError(parcel.path, f"is a parcel of {parcel.trailer.kind}, not of {kind}")
    try:
        return bytes(parcel.member(name))
    except KeyError:
        raise BadFileError(parcel.path, f"has no {name}") from None


def _fields(body: bytes) -> dict[str, Any]:
    """The fields of a sheet; ValueError if it is none."""
    fields = _read_json(body)
    if not isinstance(fields, dict) or type(fields.get("version")) is not int:
        raise ValueError("states no version")
    if fields["version"] != VERSION:
        raise _OtherSheetError(f"version {fields['version']}")
    return _only(_FIELDS, fields)


class _OtherSheetError(ValueError):
    """A sheet that another version of Postroom has written: what is new in it."""


def _only(known: frozenset[str], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, or an error if there are others: a later version has added them."""
    if not fields.keys() <= known:
        raise _OtherSheetError(f"the unknown field {min(fields.keys() - known)!r:.60}")
    return fields


def _unreadable(path: str, name: str, error: ValueError) -> BadFileError:
    if isinstance(error, _OtherSheetError):
        return OtherVersionError(path, f"its {name} has {error}")
    return BadFileError(path, f"has a {name} that {error}")


def _read_json(text: bytes) -> Any:
    try:
        return json.loads(str(text, "utf-8"))
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None


def _read_jobs(body: bytes) -> _JobHead:
    """What a sheet of jobs says; ValueError if it is none."""
    fields = _fields(body)
    try:
        options = JobOptions(**_only(_OPTIONS, fields["options"])).checked()
        names = fields["names"]
        if type(names) not in (list, type(None)) or any(type(n) is not str for n in names or ()):
            raise ValueError("has a name that is not a text")
        return _JobHead(str(fields["task"]), options, names, _StoredValues(fields["values"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks {error}") from None


# The result is shared by all readers of the same bytes, and must not be changed.
_read_jobs_again = lru_cache(maxsize=64)(_read_jobs)
_values_again = lru_cache(maxsize=64)(lambda text: _StoredValues(_read_json(text)))

_Head = TypeVar("_Head", _JobHead, _OutcomeHead)


def _read_alike(body: bytes, read: Callable[[bytes], _Head]) -> _Head | None:
    """A sheet that ends with its values, as we write it: all before them is parsed once.

    None: it is long, of another form or not valid, and has to be parsed as a whole.
    """
    if len(body) > _ALIKE_BYTES:
        return None
    head, _, values = body.partition(_VALUES)
    # Both parts have to be whole, so this was no text and nothing inside something else: a
    # quotation mark in a text has a backslash before it, and what is open would not be closed.
    with suppress(ValueError):
        if values.endswith(b"}"):
            return read(head + _NO_VALUES)._replace(values=_values_again(values[:-1]))
    return None
