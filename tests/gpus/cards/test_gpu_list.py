"""Lists of GPUs as they are typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.errors import GpuError
from postroom.gpus.cards import simulated
from postroom.gpus.cards.gpu_list import GpuFile, SlotSpec, parse_gpus
from postroom.gpus.cards.inventory import Card


def look() -> list[Card]:
    return simulated.cards("3x24G")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("0", [("0", "0")]),
        ("0,0,1", [("0", "0"), ("0b", "0"), ("1", "1")]),
        (" 1 , 0 ", [("1", "1"), ("0", "0")]),
        ("all", [("0", "0"), ("1", "1"), ("2", "2")]),
        ("1-2", [("1", "1"), ("2", "2")]),
        ("0,1-2,0", [("0", "0"), ("1", "1"), ("2", "2"), ("0b", "0")]),
        ("0,1;1,2", [("0-1", "0,1"), ("1-2", "1,2")]),
        ("0-1;0-1", [("0-1", "0,1"), ("0-1b", "0,1")]),
        ("0,1;", [("0-1", "0,1")]),
        ("cpu", [("cpu", "cpu")]),
        ("3xcpu", [("cpu", "cpu"), ("cpub", "cpu"), ("cpuc", "cpu")]),
        ("FAKE-1", [("FAKE-1", "FAKE-1")]),
    ],
)
def test_a_list_is_slots(text: str, places: list[tuple[str, str]]) -> None:
    assert parse_gpus(text, look) == [SlotSpec(*place) for place in places]


@pytest.mark.parametrize(
    "text", ["", ",", "5-2", "0,0;1", "cpu,1;", "../x", "0-99999", "%", "0,x", "2xx"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(GpuError):
        parse_gpus(text, look)


def test_every_slot_has_a_name_of_its_own_that_is_safe_in_a_path() -> None:
    places = parse_gpus("100x0", look)
    assert len({place.agent for place in places}) == 100
    assert all(place.agent.replace("-", "").isalnum() for place in places)


@pytest.mark.parametrize("text", ["0,7", "7", "2-7", "4x7", "0,7;1", "0,FAKE-7"])
def test_a_gpu_that_the_machine_does_not_have_is_named(text: str) -> None:
    with pytest.raises(GpuError, match=r"no card is called '(FAKE-7|7|3)'; visible: 0 "):
        parse_gpus(text, look)


def test_on_a_machine_without_a_gpu_every_number_is_a_slot_on_the_cpu() -> None:
    assert parse_gpus("0,7", list) == [SlotSpec("0", "0"), SlotSpec("7", "7")]


def test_a_list_of_cpus_asks_for_no_gpu() -> None:
    def fail() -> list[Card]:
        raise AssertionError("the driver was asked")

    assert parse_gpus("2xcpu,cpu", fail)[2] == SlotSpec("cpuc", "cpu")


def test_with_no_card_all_is_the_cpu() -> None:
    assert parse_gpus("all", list) == [SlotSpec("cpu", "cpu")]


def test_a_file_of_gpus_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "gpus"
    path.write_text("0\n1  # the good one\n")
    file = GpuFile(str(path), look)
    assert file.changed() == [SlotSpec("0", "0"), SlotSpec("1", "1")]
    assert file.changed() is None
    path.write_text("0,1;\n")
    assert file.changed() == [SlotSpec("0-1", "0,1")]
    path.unlink()
    assert file.changed() is None
    path.write_text("# nothing now\n")
    os.utime(path, ns=(1, 1))
    assert file.changed() == []


def test_a_file_of_gpus_that_was_never_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GpuError, match="cannot read"):
        GpuFile(str(tmp_path / "none"), look).changed()


def test_a_list_that_jobs_cannot_share_is_reported_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "3x24G")
    path = tmp_path / "gpus"
    path.write_text("0\n")
    said: list[str] = []
    file = GpuFile(str(path), say=said.append, shared=True)
    assert file.changed() == [SlotSpec("0", "0")]
    path.write_text("0,1;\n")
    assert file.changed() is None
    assert "not of the pair 0,1; the slots stay as they were" in said.pop()
    path.write_bytes(b"0,\xff\xfe\n")
    assert file.changed() is None
    assert "names no GPU" in said.pop()
    path.write_text("0,1\n")
    assert file.changed() == [SlotSpec("0", "0"), SlotSpec("1", "1")]


def test_a_typo_in_a_file_of_gpus_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gpus"
    path.write_text("0\n")
    said: list[str] = []
    file = GpuFile(str(path), look, say=said.append)
    assert file.changed() == [SlotSpec("0", "0")]
    path.write_text("0,,x\n")
    assert file.changed() is None
    assert file.changed() is None
    assert len(said) == 1 and "'x'" in said[0] and "stay as they were" in said[0]
    path.write_text("0,7\n")
    assert file.changed() is None
    assert "'7'" in said.pop() and len(said) == 1
    path.write_text("0,1,1\n")
    assert file.changed() == [SlotSpec("0", "0"), SlotSpec("1", "1"), SlotSpec("1b", "1")]
    path.write_text("x")
    with pytest.raises(GpuError):
        GpuFile(str(path), look).changed()
