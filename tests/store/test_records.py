"""JSON records: what is written comes back, and whatever else is there is one named error."""

from __future__ import annotations

import enum
import importlib
import json
import pkgutil
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from postroom import commands, queue, session, store
from postroom.commands.spec import CommandSpec
from postroom.errors import BadFileError, OtherVersionError, PostroomError
from postroom.parcel.sheets import Failure, JobOptions, RanBy
from postroom.store.agents import PROTOCOL
from postroom.store.base import FORMAT
from postroom.store.job_ids import JobId
from postroom.store.records import JsonRecord
from postroom.store.scheduling import SchedulingOptions


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Part:
    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class Sample(JsonRecord):
    VERSION: ClassVar[int] = 3
    CALLED: ClassVar[str] = "a sample"

    number: int
    colour: Colour = Colour.RED
    limit: float | None = None
    jobs: tuple[JobId, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    names: set[str] = field(default_factory=set)
    held: dict[JobId, bool] = field(default_factory=dict)
    counts: dict[int, dict[int, str]] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    part: Part | None = None
    value: int | str | None = None
    anything: Any = None

    def check(self) -> None:
        if self.number < 0:
            raise PostroomError("a number is 0 or more")


FULL = Sample(
    1,
    Colour.BLUE,
    2.5,
    (JobId("r", 1), JobId("r", 2)),
    ((0, 3), (5, 6)),
    {"b", "a"},
    {JobId("r", 7): True},
    {3: {4: "x"}},
    [Part("p"), Part("q", 2.0)],
    Part("r"),
    "text",
    {"free": [1, None]},
)


@pytest.mark.parametrize("sample", [FULL, Sample(0)])
def test_what_is_written_comes_back(sample: Sample) -> None:
    assert Sample.decode("s.json", sample.encode()) == sample


def test_people_can_read_the_file() -> None:
    content = json.loads(FULL.encode())
    assert content["version"] == 3
    assert content["colour"] == "blue"
    assert content["jobs"] == ["r/1", "r/2"]
    assert content["names"] == ["a", "b"]
    assert content["held"] == {"r/7": True}


def test_a_field_that_is_not_there_has_its_default() -> None:
    assert Sample.decode("s.json", b'{"version": 3, "number": 5}') == Sample(5)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a sample: it is not JSON"),
        (b"[" * 100_000, "is not a sample: it is not JSON"),
        (b"[]", "is not a sample: it states no version"),
        (b'{"version": "3", "number": 5}', "is not a sample: it states no version"),
        (b'{"version": 3}', "is not a sample: it has no field 'number'"),
        (b'{"version": 3, "number": -1}', "is not a sample: a number is 0 or more"),
    ],
)
def test_a_file_that_is_no_such_record_is_one_error(content: bytes, says: str) -> None:
    with pytest.raises(BadFileError) as caught:
        Sample.decode("s.json", content)
    assert caught.value.path == "s.json"
    assert says in caught.value.reason
    assert not isinstance(caught.value, OtherVersionError)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"version": 4}', "it is a sample of version 4"),
        (b'{"version": 2, "number": 5}', "it is a sample of version 2"),
        (b'{"version": 3, "number": 1, "size": 1}', "it has an unknown field 'size'"),
        (b'{"version": 3, "number": 1, "colour": "green"}', "'green' is not a valid Colour"),
        (b'{"version": 3, "number": 1, "parts": [{"name": "p", "size": 1}]}', "field 'size'"),
        (b'{"version": 3, "number": 1, "part": {"name": "p", "size": 1}}', "field 'size'"),
    ],
)
def test_a_record_of_another_version_is_not_a_bad_one(content: bytes, says: str) -> None:
    with pytest.raises(OtherVersionError, match=f"another version of Postroom .*{says}"):
        Sample.decode("s.json", content)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", True),
        ("number", 1.5),
        ("number", "1"),
        ("number", None),
        ("colour", []),
        ("limit", "1"),
        ("limit", True),
        ("jobs", "r/1"),
        ("jobs", ["../x"]),
        ("jobs", [7]),
        ("spans", [[1]]),
        ("spans", [[1, 2, 3]]),
        ("spans", [1]),
        ("names", [["a"]]),
        ("held", []),
        ("held", {"r": True}),
        ("held", {"r/7": 1}),
        ("counts", {"x": {}}),
        ("counts", {"1": {"2": 3}}),
        ("parts", [{"weight": 1.0}]),
        ("parts", ["p"]),
        ("value", 1.5),
        ("value", []),
    ],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_field(name: str, value: Any) -> None:
    content = json.dumps({"version": 3, "number": 1, name: value}).encode()
    with pytest.raises(BadFileError, match=f"is not a sample: its field '{name}' is wrong"):
        Sample.decode("s.json", content)


# What lies on disk

SHAPES = Path(__file__).parent.parent / "data" / "shapes.json"


def shapes() -> dict[str, Any]:
    """The fields of everything that a base holds."""
    for package in (commands, queue, session, store):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    records = [kind for kind in JsonRecord.__subclasses__() if kind.__module__ != __name__]
    kinds = [*records, SchedulingOptions, CommandSpec, JobOptions, Failure, RanBy]
    found = {kind.__name__: {"version": getattr(kind, "VERSION", 1)} for kind in kinds}
    for kind in kinds:
        hints = {name: str(hint) for name, hint in typing.get_type_hints(kind).items()}
        found[kind.__name__] |= {n: h for n, h in hints.items() if "ClassVar" not in h}
    return {"FORMAT": FORMAT, "PROTOCOL": PROTOCOL, **dict(sorted(found.items()))}


def test_a_change_of_what_lies_on_disk_raises_the_format() -> None:
    """Two versions that share a FORMAT must understand each other."""
    known, now = json.loads(SHAPES.read_text()), shapes()
    advice = "then run `python -m tests.store.test_records`"
    if known["FORMAT"] == now["FORMAT"]:
        changed = [name for name in {*known, *now} if known.get(name) != now.get(name)]
        assert not changed, f"{changed} changed: raise FORMAT in store/base.py, {advice}"
    assert known == now, f"FORMAT is new: {advice}"


if __name__ == "__main__":
    SHAPES.write_text(json.dumps(shapes(), indent=1) + "\n")
