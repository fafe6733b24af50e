"""Values that travel as their parts come back as they were; a crafted class is never made."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import os
import struct
import subprocess
import sys
import typing
import uuid
import zoneinfo
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import BadFileError, PayloadError
from postroom.parcel.encode import encode
from postroom.parcel.sheets import unpack_data
from tests.parcel.test_encode import (
    numpy_members,
    round_trip,
    same,
    ship,
    slow_to_draw,
    unwrap,
    wrap,
)
from tests.parcel.test_encode import values as any_values


@dataclasses.dataclass
class Config:
    lr: float
    layers: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        CALLS.append(self)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any


class Outer:
    @dataclasses.dataclass
    class Inner:
        x: Any


class Point(typing.NamedTuple):
    x: Any
    y: Any


Old = collections.namedtuple("Old", "a b")


class Colour(enum.Enum):
    RED = "r"
    CRIMSON = "r"  # noqa: PIE796 - another name of the same


class Level(enum.IntEnum):
    LOW = 1


class Text(str, enum.Enum):  # noqa: UP042 - the older way is in use, too
    A = "a"


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


CALLS: list[Any] = []
try:
    BERLIN: datetime.tzinfo = zoneinfo.ZoneInfo("Europe/Berlin")
except zoneinfo.ZoneInfoNotFoundError:  # a small machine has no list of zones
    BERLIN = datetime.UTC

hashable = (
    st.none() | st.booleans() | st.integers() | st.text() | st.dates() | st.uuids()
    | st.decimals(allow_nan=False) | st.fractions() | st.binary()
)  # fmt: skip
zones = st.none() | st.just(BERLIN) | st.just(datetime.UTC) | st.builds(
    datetime.timezone, st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23))
)  # fmt: skip
kinds = (
    st.sets(hashable)
    | st.frozensets(hashable)
    | st.dates()
    | st.datetimes(timezones=zones)
    | st.times(timezones=zones)
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.uuids()
    | st.binary().map(bytearray)
    | st.text(st.characters(codec=None, exclude_characters="\0")).map(Path)
    | st.builds(range, st.integers(), st.integers(), st.integers(1))
    | st.sampled_from([*Colour, *Level, *Text, Mode.READ])
)


@slow_to_draw
@given(st.recursive(
    kinds,
    lambda inner: (
        st.builds(Config, inner, st.lists(inner, max_size=3))
        | st.builds(Frozen, inner)
        | st.builds(Slotted, inner)
        | st.builds(Outer.Inner, inner)
        | st.builds(Point, inner, inner)
        | st.builds(Old, inner, inner)
        | st.builds(argparse.Namespace, a=inner, b=inner)
        | st.builds(SimpleNamespace, a=inner, b=inner)
        | st.dictionaries(st.text(), inner, max_size=3).map(collections.OrderedDict)
    ),
    max_leaves=6,
))  # fmt: skip
def test_a_value_that_has_parts_comes_back_as_it_was(value: Any) -> None:
    back = round_trip({"x": value})["x"]
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value) or isinstance(value, set | frozenset) or "{" in repr(value)


@slow_to_draw
@given(any_values)
def test_what_a_dataclass_holds_comes_back_as_it_was(value: Any) -> None:
    for box in (Slotted(value), Point(value, 1)):
        back = round_trip(box)
        assert type(back) is type(box)
        assert same(back.x, value)


def test_no_code_of_a_class_is_run_to_make_its_values() -> None:
    config = Config(0.1)
    config.seen = [np.ones(2)]  # type: ignore[attr-defined]
    CALLS.clear()
    back = round_trip(config)
    assert CALLS == []
    assert (back.lr, back.layers, back.seen[0].tolist()) == (0.1, [], [1, 1])


def test_an_aware_time_keeps_its_zone_and_its_fold() -> None:
    twice = datetime.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)
    back = round_trip(twice)
    assert back.tzinfo is BERLIN
    assert (back.fold, back.utcoffset()) == (1, twice.utcoffset())
    named = datetime.timezone(datetime.timedelta(hours=1), "CET")
    assert round_trip(named).tzname(None) == "CET"
    assert round_trip(datetime.UTC) is datetime.UTC


def test_equal_sets_make_equal_parcels() -> None:
    program = (
        "import sys; from tests.parcel.test_encode import ship;"
        "sys.stdout.write(ship([{'s': {'a', 'b', 'c', 'd', 'e'}}]).hex())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1


def test_arrays_in_a_class_are_members_that_are_named_by_their_fields() -> None:
    assert list(numpy_members(ship([{"c": Config(0.1, [np.ones(2)])}]))) == ["c.layers.0"]


def local() -> Any:
    @dataclasses.dataclass
    class Local:
        x: int = 1

    return Local()


class Listed(list[int]):
    pass


def nameless() -> Any:
    header = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    return zoneinfo.ZoneInfo.from_file(io.BytesIO(header + struct.pack(">lBB", 0, 0, 0) + b"UTC\0"))


def elsewhere() -> Any:
    made = dataclasses.make_dataclass("Script", ["x"])(1)
    type(made).__module__ = "__main__"
    return made


@dataclasses.dataclass
class Strange(dict[str, int]):
    x: int = 1


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (local, r"cannot be imported as .*Local: define the class at the top of a module"),
    (elsewhere, r"a class of the script itself.*: move the class to a module of its own"),
    (lambda: Mode.READ | Mode.WRITE, "is a combination of flags: send its value"),
    (lambda: Strange(), r"is of type Strange: send dict\(...\)"),
    (lambda: Listed(), r"is of type Listed: send list\(...\)"),
    (lambda: collections.defaultdict(list), r"is of type defaultdict: send dict\(...\)"),
    (lambda: np.float32, "is the class float32: send its name as text"),
    (lambda: np.dtype("f4"), "is of type .*: send its name as text"),
    (lambda: encode, "is of type function: send its name as text, and import it"),
    (lambda: np, "is of type module: send its name as text"),
    (lambda: (n for n in [1]), "is of type generator: send a list of its items"),
    (lambda: io.StringIO(), "is of type StringIO: send its path"),
    (lambda: np.random.default_rng(0), "is of type Generator: send a seed"),
    (lambda: PurePosixPath("/"), "is of type PurePosixPath: turn it into"),
    (nameless, "is a time zone without a name"),
    (lambda: SimpleNamespace(**{"$x": 1}), "has an attribute that is called '.x': rename it"),
]


@pytest.mark.parametrize(("make", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_has_no_parts_is_named_and_refused(make: Callable[[], Any], what: str) -> None:
    with pytest.raises(PayloadError, match=rf"^job 3: x\[0\] .*{what}"):
        encode([{"x": [make()]}], label="job 3:")


HERE = __name__
LIES: list[Any] = [
    {"$set": 3},
    {"$set": [[1]]},
    {"$bytearray": 1 << 40},
    {"$range": [1.5]},
    {"$range": [0, 1, 0]},
    {"$slice": [1, 2, 3, 4]},
    {"$fraction": [1, 0]},
    {"$fraction": ["1e999999999"]},
    {"$decimal": "x"},
    {"$uuid": "x"},
    {"$date": [2020, 13, 1]},
    {"$timedelta": [10**10, 0, 0]},
    {"$datetime": {"at": [2020, 1, 1, 0, 0, 0, 0, 0], "tzinfo": 3}},
    {"$datetime": {"at": [], "tzinfo": None}},
    {"$datetime": {}},
    {"$timezone": [1]},
    {"$zone": "../../../etc/passwd"},
    {"$zone": "No/Where"},
    {"$namespace": {"__class__": 3}},
    {"$simplenamespace": [1]},
    {"$ordered": {}},
    {"$ordered": [1, 2]},
    {"$enum": [f"{HERE}:Colour", "GREEN"]},
    {"$enum": [f"{HERE}:Config", "lr"]},
    {"$enum": [f"{HERE}:Colour", ["RED"]]},
    {"$namedtuple": [f"{HERE}:Point", {"x": 1}]},
    {"$namedtuple": [f"{HERE}:Point", [1, 2]]},
    {"$namedtuple": ["builtins:tuple", {}]},
    {"$dataclass": [f"{HERE}:Point", {"x": 1, "y": 2}]},
    {"$dataclass": [f"{HERE}:Config", {"__class__": 1}]},
    {"$dataclass": [f"{HERE}:Slotted", {"nothing": 1}]},
    {"$dataclass": [f"{HERE}:Config", 3]},
    {"$dataclass": [f"{HERE}:Nothing", {}]},
    {"$dataclass": [f"{HERE}:CALLS.append", {}]},
    {"$dataclass": ["no_such_module_here:Config", {}]},
    {"$dataclass": ["subprocess:Popen", {"args": "true"}]},
    {"$dataclass": ["builtins:eval", "1"]},
    {"$dataclass": ["", {}]},
    {"$dataclass": [3, {}]},
    {"$dataclass": [f"{HERE}:Config"]},
    {"$unknown": 1},
]


@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_what_a_file_says_of_a_class_is_not_believed(lie: Any) -> None:
    tree = {"first": 0, "count": 1, "arrays": {}, "trees": [lie]}
    with pytest.raises(BadFileError):
        unwrap(wrap(tree, []))


def test_a_class_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ship([Config(0.1)])
    monkeypatch.delattr(sys.modules[HERE], "Config")
    with pytest.raises(BadFileError, match=r"it holds a .*\.Config that cannot be made"):
        unwrap(data)


def test_a_script_that_reads_its_own_class_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from dataclasses import dataclass\n"
        "from postroom.parcel.value_kinds import build_of_class\n"
        "print('begun')\n"
        "@dataclass\n"
        "class Config:\n"
        "    lr: float\n"
        "made = build_of_class('$dataclass', 'script:Config', {'lr': 0.5})\n"
        "print(made == Config(0.5), 'script' in sys.modules)\n"
    )
    for how in (["script.py"], ["-m", "script"]):
        done = subprocess.run(
            [sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == "begun\nTrue False\n"


def test_values_of_earlier_versions_are_read_for_ever() -> None:
    frozen = Path(__file__).parents[1] / "data" / "kinds-2.npz"
    hour = datetime.timezone(datetime.timedelta(hours=1), "X")
    assert unpack_data("kinds", frozen.read_bytes()) == {
        "set": {1, "a"},
        "frozenset": frozenset({2}),
        "bytearray": bytearray(b"ab"),
        "range": range(1, 9, 2),
        "slice": slice(1, None),
        "path": Path("/a/b"),
        "decimal": decimal.Decimal("1.50"),
        "fraction": fractions.Fraction(1, 3),
        "uuid": uuid.UUID(int=7),
        "date": datetime.date(2020, 1, 2),
        "time": datetime.time(1, 2, 3, 4),
        "datetime": datetime.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=hour),
        "timedelta": datetime.timedelta(1, 2, 3),
        "namespace": argparse.Namespace(a=1),
        "simple": SimpleNamespace(b=2),
        "ordered": collections.OrderedDict(z=1, a=2),
        "dataclass": Config(0.1, [1]),
        "slotted": Slotted(3),
        "nested": Outer.Inner(4),
        "namedtuple": Point(1, 2),
        "enum": Colour.RED,
        "level": Level.LOW,
    }
