from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom.errors import GpuError
from postroom.gpus.cards import inventory, simulated
from postroom.text import sizes
from tests.gpus.ledgerkit import wait_until


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path))
    return str(tmp_path)


def test_cards_of_several_kinds_can_be_invented() -> None:
    found = simulated.cards("2x24G,80G:A100 80GB,1x500M")
    assert [(card.index, card.memory_mib, card.name) for card in found] == [
        (0, 24576, "Simulated"),
        (1, 24576, "Simulated"),
        (2, 81920, "A100 80GB"),
        (3, 500, "Simulated"),
    ]
    assert simulated.cards("") == []
    with pytest.raises(GpuError, match="4x24G"):
        simulated.cards("4 cards")


def test_a_claim_shows_as_used_memory_and_goes_with_its_process(
    stage: str, start: Callable[..., subprocess.Popen[str]]
) -> None:
    code = (
        "from postroom.gpus.cards import simulated; import time\n"
        "claim = simulated.Claim('FAKE-1', 6000); print('claimed', flush=True); time.sleep(600)"
    )
    child = start(sys.executable, "-c", code)
    assert child.stdout is not None
    assert child.stdout.readline() == "claimed\n"
    card = inventory.find("1")
    assert (card.used_mib, card.processes[0].pid) == (6000, child.pid)
    child.kill()
    child.wait()
    assert inventory.find("1").used_mib == 0


def test_a_claim_can_grow_until_the_card_is_full(stage: str) -> None:
    with simulated.Claim("FAKE-0", 20000) as large, simulated.Claim("FAKE-0", 4000) as small:
        with pytest.raises(simulated.OutOfMemory, match="4576 MiB are free"):
            small.resize(5000)
        large.resize(1000)
        small.resize(23000)
        assert inventory.find("0").free_mib == 576


def test_a_script_changes_cards_while_others_look_on(stage: str) -> None:
    stranger = {"pid": 1, "user": "eve", "command": "miner", "used_mib": 900}
    simulated.script(stage, {"FAKE-2": {"problem": "lost: gone", "processes": [stranger]}})
    card = inventory.find("2")
    assert (card.problem, card.used_mib, card.processes[0].user) == ("lost: gone", 900, "eve")
    simulated.script(stage, {})
    assert inventory.find("2").problem == ""


def test_a_script_makes_cards_show_less_as_in_containers(stage: str) -> None:
    with simulated.Claim("FAKE-0", 900), simulated.Claim("FAKE-1", 900):
        simulated.script(
            stage,
            {
                "FAKE-0": {"pids": "elsewhere", "driver_mib": 450},
                "FAKE-1": {"memory": "unknown", "linked": ["FAKE-2"]},
            },
        )
        first, second, *_ = inventory.cards()
        (process,) = first.processes
        assert (first.used_mib, first.unexplained_mib, process.user) == (900, 900, "?")
        assert (first.memory_mib, first.driver_mib) == (24576 - 450, 450)
        assert (second.used_mib, second.processes[0].used_mib) == (900, None)
        assert second.linked == ("FAKE-2",)
        simulated.script(stage, {"FAKE-0": {"pids": "none"}})
        assert inventory.find("0").processes == ()


def test_memory_may_be_free_only_some_time_after_its_process_died(
    stage: str, start: Callable[..., subprocess.Popen[str]]
) -> None:
    code = "import os; from postroom.gpus.cards import simulated; simulated.Claim('FAKE-0', 900); "
    assert start(sys.executable, "-c", code + "os._exit(0)").wait() == 0
    simulated.script(stage, {"FAKE-0": {"late_free_s": 60}})
    card = inventory.find("0")
    assert (card.used_mib, card.unexplained_mib, card.processes) == (900, 900, ())
    simulated.script(stage, {"FAKE-0": {"late_free_s": 0.001}})
    wait_until(lambda: inventory.find("0").used_mib == 0)


@pytest.mark.parametrize(
    ("text", "mib"), [("8G", 8192), ("8GiB", 8192), ("1.5g", 1536), ("500M", 500)]
)
def test_amounts_of_memory_are_read_as_people_write_them(text: str, mib: int) -> None:
    assert sizes.to_mib(text) == mib


@pytest.mark.parametrize("text", ["", "G", "-1G", "8T", "nan", "1e99G", "0"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(GpuError):
        sizes.to_mib(text)
