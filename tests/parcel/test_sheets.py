from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.errors import BadFileError, PayloadError
from postroom.parcel import sheets
from postroom.parcel.container import Buffer, pack
from postroom.parcel.jsonable import weight
from postroom.parcel.sheets import (
    Failure,
    JobEnd,
    JobOptions,
    JobSheet,
    Outcome,
    OutcomeSheet,
    RanBy,
    pack_data,
    pack_jobs,
    pack_outcomes,
    unpack_data,
)
from postroom.parcel.trailer import Trailer, read_trailer

RAN_BY = RanBy("0", "cpu", 1, 2.0)


def joined(chunks: list[Buffer]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


def test_jobs_come_back_with_their_names_options_and_arguments() -> None:
    options = JobOptions(retries=2, timeout_s=1.5)
    passed: list[dict[str, Any]] = [{"x": np.arange(3) + n, "n": n} for n in range(4)]
    sheet = JobSheet("p", joined(pack_jobs(10, "m:f", options, list("abcd"), passed)))
    assert (sheet.first, sheet.count, sheet.task, sheet.options) == (10, 4, "m:f", options)
    assert sheet.name(12) == "c"
    assert sheet.arguments(12)["n"] == 2
    np.testing.assert_array_equal(sheet.arguments(13)["x"], np.arange(3) + 3)


def test_failures_do_not_shift_the_results_behind_them() -> None:
    failed = JobEnd(failure=Failure(Outcome.FAILED, "ValueError", "no", "trace"), seconds=0.5)
    done = [JobEnd(np.full(2, 0)), failed, JobEnd(np.full(2, 2)), failed, JobEnd(np.full(2, 4))]
    sheet = OutcomeSheet("p", joined(pack_outcomes(7, done, RAN_BY)))
    assert [sheet.done(7 + n).value[0] for n in (0, 2, 4)] == [0, 2, 4]
    assert sheet.done(8).failure == failed.failure
    assert sheet.seconds == [0.0, 0.5, 0.0, 0.5, 0.0]
    assert sheet.ran_by == RAN_BY


def test_a_trailer_says_whether_a_job_has_scheduling_options_or_failed() -> None:
    def flags(chunks: list[Buffer]) -> str:
        return read_trailer("p", joined(chunks)).flags

    failed = JobEnd(failure=Failure(Outcome.FAILED, "ValueError", "no"))
    assert (
        flags(pack_jobs(0, "m:f", JobOptions(), None, [{}, {"scheduling": {"held": True}}])) == "w"
    )
    assert flags(pack_jobs(0, "m:f", JobOptions(), None, [{"scheduling": {}}, {}])) == ""
    assert flags(pack_jobs(0, "m:f", JobOptions(), None, [{"scheduling": np.ones(2)}])) == ""
    assert flags(pack_outcomes(0, [JobEnd(1), failed], RAN_BY)) == "f"
    assert flags(pack_outcomes(0, [JobEnd(1)], RAN_BY)) == ""
    assert flags(pack_outcomes(0, [failed], RAN_BY)) == "f"
    assert flags(pack_outcomes(0, [JobEnd({})], RAN_BY)) == ""


def test_a_parcel_of_another_kind_is_refused() -> None:
    jobs = joined(pack_jobs(0, "m:f", JobOptions(), None, [{}]))
    results = joined(pack_outcomes(0, [JobEnd(1)], RAN_BY))
    for sheet, data in ((JobSheet, results), (OutcomeSheet, jobs)):
        with pytest.raises(BadFileError, match="is a parcel of"):
            sheet("p", data)
    with pytest.raises(BadFileError, match="is a parcel of"):
        unpack_data("p", jobs)


def test_shared_data_comes_back() -> None:
    shared = {"table": np.arange(5.0), "names": ["a", "b"], "depth": 3}
    back = unpack_data("p", joined(pack_data(shared)))
    np.testing.assert_array_equal(back["table"], shared["table"])
    assert back["names"] == ["a", "b"]


def test_weight_tells_large_from_small() -> None:
    assert weight({"x": [np.zeros(1000), np.zeros(24)], "s": "abc", "n": 1}) == 8192 + 3 + 8


@pytest.mark.parametrize(
    "value",
    [
        {"x": 1, "y": [True, None, 2.5, "text"], "z": {}},
        {"x": "größer"},
        {"$x": 1},
        {"x": {"$array": "x"}},
        {"x": 1 << 70},
        {"x": float("nan")},
        {"x": (1, 2)},
        {"x": "\ud800"},
        {1: 2},
    ],
)
def test_plain_values_are_packed_as_payload_packs_them(value: dict[str, object]) -> None:
    from postroom.parcel import encode

    jobs = [value, {"x": 0}, value]
    sheet = JobSheet("x", b"".join(pack_jobs(5, "a:b", JobOptions(), None, jobs)))
    tree, members = encode.encode(jobs, first=5, label="job")
    assert json.loads(bytes(sheet.parcel.member("jobs.json")))["values"] == json.loads(
        json.dumps(tree)
    )
    assert not members
    assert repr(sheet.arguments(7)) == repr(value)
    assert repr(sheet.plain(7)) == repr(value)


def test_what_is_nested_for_ever_is_refused_by_payload() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(PayloadError):
        pack_jobs(0, "a:b", JobOptions(), None, [{"x": endless}])


def test_an_outcome_that_is_nested_too_deep_is_a_bad_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.parcel.sheets.is_json", lambda value: True)
    value: dict[str, object] = {}
    for _ in range(200):
        value = {"x": value}
    data = b"".join(pack_outcomes(3, [JobEnd(value)], RanBy("0", "", 1, 0.0)))
    with pytest.raises(BadFileError):
        OutcomeSheet("x", data).done(3)


FROZEN = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("tag", ["1", "2"])
def test_parcels_of_earlier_versions_are_read_for_ever(tag: str) -> None:
    jobs = JobSheet("jobs", (FROZEN / f"jobs-{tag}.npz").read_bytes())
    assert (jobs.first, jobs.count, jobs.task, jobs.names) == (7, 2, "kernels:double", ["a", "b"])
    assert jobs.options == JobOptions(retries=2, timeout_s=1.5)
    assert jobs.arguments(8)["x"].tolist() == [1.0, 2.0, 3.0]
    assert jobs.arguments(8)["k"] == 1
    results = OutcomeSheet("results", (FROZEN / f"results-{tag}.npz").read_bytes())
    assert results.ran_by == RanBy("0", "GPU-1", 42, 1700000000.25, attempt=3)
    assert results.seconds == [0.25, 0.5, 1e-6]
    assert results.done(7).value["y"].tolist() == [0, 1]
    assert results.done(9).value["y"].tolist() == [1, 2]
    failure = results.done(8).failure
    assert failure is not None and failure.message == 'says "],"maker":{"started_at":'
    shared = unpack_data("data", (FROZEN / f"data-{tag}.npz").read_bytes())
    assert shared["w"].tolist() == [[1, 0], [0, 1]]
    assert shared["n"] == [1, None, "ü"]


def sheet_of(text: bytes, count: int = 1) -> OutcomeSheet:
    chunks = pack(Trailer("results", 0, count), [("outcomes.json", [text])])
    return OutcomeSheet("x", b"".join(chunks))


GOOD = (
    b'{"seconds":[0.5],"maker":{"started_at":1.25,"agent":"0","gpu":"","pid":1,"attempt":1},'
    b'"version":1,"pickle":false,"failures":{},'
    b'"values":{"first":0,"count":1,"arrays":{},"trees":[7]}}'
)


def test_a_sheet_is_read_whatever_the_order_of_its_fields() -> None:
    turned = json.dumps(dict(reversed(json.loads(GOOD).items()))).encode()
    for text in (GOOD, turned, GOOD.replace(b"0.5", b"0.5 "), GOOD.replace(b",", b" , ")):
        sheet = sheet_of(text)
        assert (sheet.seconds, sheet.ran_by.started_at, sheet.value(0)) == ([0.5], 1.25, 7)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":1', b'"version":2'), (b'"version":1,', b""), (b"0.5", b"0.5,0.5"),
        (b"[0.5]", b"7"), (b"[0.5]", b"[[]]"), (b"1.25", b"[]"),
        (b"0.5", b""), (b"0.5", b"x"), (b"1.25", b"x"), (b"1.25,", b""), (b'"pid":1,', b""),
        (b'"pid":1,', b'"pid":1,"more":2,'), (b"}}", b"}"), (b"}}", b"}}}"), (b"{}", b"[]"),
        (b'"failures":{}', b'"failures":{"0":{}}'), (b'"failures":{},', b""), (b"[7]}}", b"[7]}"),
    ],
)  # fmt: skip
def test_a_sheet_of_outcomes_that_lies_is_a_bad_file(old: bytes, new: bytes) -> None:
    assert old in GOOD
    with pytest.raises(BadFileError):
        sheet_of(GOOD.replace(old, new)).done(0)


def test_who_changes_a_result_changes_no_other() -> None:
    """Results that are alike are read once."""
    parcels = [b"".join(pack_outcomes(n, [JobEnd({"x": [1]})], RAN_BY)) for n in range(2)]
    one, other = (OutcomeSheet("x", data) for data in parcels)
    one.value(0)["x"].append(2)
    assert (one.value(0), other.value(1)) == ({"x": [1]}, {"x": [1]})
    jobs = b"".join(pack_jobs(0, "a:b", JobOptions(), None, [{"x": [1]}]))
    first, second = (JobSheet("x", jobs) for _ in range(2))
    first.arguments(0)["x"].append(2)
    first.plain(0)["x"].append(2)
    assert second.arguments(0) == second.plain(0) == {"x": [1]}


@pytest.mark.parametrize(
    ("body", "alike"),
    [
        ('{"version":1,"task":"a:b","options":{},"names":null,"values":[1,{"values":2}]}', True),
        ('{"version":1,"task":"a,\\"values\\":b","options":{},"names":null,"values":3}', True),
        ('{"version":1,"task":"a:b","options":{},"values":1,"names":null}', False),
        ('{"version":1,"task":"a:b","options":{},"names":null,"values":1,"values":2}', False),
        ('{"version":1,"task":"a:b","options":{},"values":1,"names":["x","values",":"]}', False),
        ('{"version":1,"task":"a:b","options":{"x":{},"values":2},"names":null}', False),
        ('{"version":1,"task":"a:b","options":{},"names":null,"values":}', False),
        ('{"version":2,"task":"a:b","options":{},"names":null,"values":1}', False),
        ('{"version":1,"task":"a:b","options":{},"names":null,"values":12', False),
        ('{"version":1,"task":"a:b","options":{},"names":null,"values":1} ', False),
    ],
)
def test_a_sheet_that_is_read_in_two_parts_says_what_it_says_as_a_whole(
    body: str, alike: bool
) -> None:
    for _ in range(2):  # the second time, what is before the values is known
        found = sheets._read_alike(body.encode(), sheets._read_jobs_again)
        assert (found is not None) == alike
        if found is not None:
            whole = sheets._read_jobs(body.encode())
            assert found[:3] == whole[:3]
            assert found.values.raw == whole.values.raw == json.loads(body)["values"]
