"""Frames of pandas and polars come back as they were, or are refused with the reason."""

from __future__ import annotations

import datetime
import decimal
import os
import sys
from typing import Any

import numpy as np
import pytest

from postroom.errors import BadFileError, PayloadError
from postroom.parcel.encode import encode
from postroom.parcel.jsonable import weight
from tests.parcel.test_encode import numpy_members, round_trip, ship, unwrap, wrap

if "CI" not in os.environ:  # there, what is missing fails
    for package in ("pandas", "polars", "pyarrow"):
        pytest.importorskip(package, reason="pip install 'postroom[frames]'")
import pandas as pd
import polars as pl
import pyarrow as pa

TIMES = pd.date_range("2020", periods=2, tz="Europe/Berlin")
FRAMES = {
    "numbers": pd.DataFrame({"a": [1, 2], "b": [1.5, np.nan], "c": np.array([1, 2], "f2")}),
    "text": pd.DataFrame({"a": ["x", None]}),
    "text as objects": pd.DataFrame({"a": pd.Series(["x", "y"], dtype=object)}),
    "categories": pd.DataFrame({"a": pd.Categorical(["x", "y"], ordered=True)}),
    "missing": pd.DataFrame({"a": pd.array([1, None], dtype="Int64")}),
    "times": pd.DataFrame({"a": TIMES, "b": pd.to_timedelta([1, 2], "s")}, index=TIMES),
    "dates": pd.DataFrame({"a": [datetime.date(2020, 1, 1), None], "b": [decimal.Decimal(1)] * 2}),
    "index": pd.DataFrame({"a": [1, 2]}, index=pd.Index(["p", "q"], name="i")),
    "levels": pd.DataFrame({"a": [1]}, index=pd.MultiIndex.from_tuples([(1, "a")])),
    "numbered": pd.DataFrame([[1, 2], [3, 4]]),
    "levels of columns": pd.DataFrame(
        [[1, 2]], columns=pd.MultiIndex.from_product([["a"], [1, 2]])
    ),
    "empty": pd.DataFrame(),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_pandas_frame_comes_back_as_it_was(frame: pd.DataFrame) -> None:
    frame.attrs = {"unit": "m", "shape": (1, 2)}
    back = round_trip({"x": frame})["x"]
    pd.testing.assert_frame_equal(back, frame, check_freq=True)
    assert back.attrs == frame.attrs
    if back.size:
        back.iloc[0, 0] = back.iloc[-1, 0]  # it can be changed


def test_a_series_keeps_its_name_and_its_index() -> None:
    for name in (None, "a", 3, ("a", 1)):
        series = pd.Series([1.5, 2.5], index=["p", "q"], name=name)
        pd.testing.assert_series_equal(round_trip(series), series)


@pytest.fixture(scope="module", autouse=True)
def _event_loop_of_polars() -> None:
    """Polars starts it with the first frame, and keeps its descriptors."""
    test_frames_of_polars_and_arrow_come_back_as_they_were()


def test_frames_of_polars_and_arrow_come_back_as_they_were() -> None:
    frame = pl.DataFrame({"a": [1, None], "b": ["x", "y"], "c": [[1], [2, 3]], "d": [TIMES[0]] * 2})
    assert round_trip(frame).equals(frame)
    assert round_trip(frame).schema == frame.schema
    series = pl.Series("n", [1, 2])
    assert round_trip(series).equals(series, check_names=True)
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    assert round_trip(table).equals(table)


def test_many_frames_travel_in_one_parcel() -> None:
    frames = [pd.DataFrame({"a": range(n)}) for n in (1, 1, 5)]
    for back, frame in zip(unwrap(ship(frames)), frames, strict=True):
        pd.testing.assert_frame_equal(back, frame)


REFUSED: list[tuple[Any, str]] = [
    (pd.DataFrame({"a": [[1], [2]]}), "has a column 'a' of Python objects"),
    (pd.DataFrame({"a": [1, "x"]}), "has a column 'a' of Python objects"),
    (pd.DataFrame([[1, 2]], columns=["a", 1]), "names of mixed types"),
    (pd.DataFrame([[1, 2]], columns=["a", "a"]), "Duplicate column names"),
    (pd.DataFrame({"a": [1j]}), "is a frame that Arrow cannot hold"),
    (pl.DataFrame({"a": [object()]}), "has a column 'a' of Python objects"),
    (pl.LazyFrame({"a": [1]}), r"is of type LazyFrame: send \.collect\(\)"),
    (pd.Timestamp("2020"), r"is of type Timestamp: send \.to_pydatetime\(\)"),
]


@pytest.mark.parametrize(("frame", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_a_frame_that_would_change_on_the_way_is_refused(frame: Any, what: str) -> None:
    with pytest.raises(PayloadError, match=rf"^a\['x'\] .*{what}"):
        encode([{"x": frame}], label="a")


def test_pandas_without_arrow_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PayloadError, match=r"pip install 'postroom\[frames\]'"):
        encode([FRAMES["numbers"]])


def test_a_stream_that_is_none_is_a_bad_file() -> None:
    for lie in ({"arrow": 3}, {"arrow": {"$bytes": "AAAA"}}, {}, 3):
        for tag in ("$pandas", "$pandas_series", "$polars", "$polars_series", "$arrow"):
            tree = {"first": 0, "count": 1, "arrays": {}, "trees": [{tag: lie}]}
            with pytest.raises(BadFileError):
                unwrap(wrap(tree, []))


def test_a_frame_weighs_what_it_holds() -> None:
    frame = pd.DataFrame({"a": np.zeros(1000)})
    assert weight({"x": frame}) >= 8000
    assert weight(pl.from_pandas(frame)) >= 8000
    assert numpy_members(ship([frame]))["arrow"].nbytes >= 8000
