"""`postroom doctor --gpu` on the scripted device: every step, with its verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroom.cli.doctor import command
from postroom.gpus.cards import inventory, simulated
from postroom.queue import gpu_check
from postroom.queue.gpu_check import CheckStep, Verdict, _look_at, _Steps, check_gpus
from postroom.testing import script_device


@pytest.fixture(autouse=True)
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("ledger", "cards", "profiles"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("POSTROOM_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "24G")
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path / "cards"))
    monkeypatch.setenv("POSTROOM_FAKE_DEVICE", "context_mib=300")
    monkeypatch.setenv("POSTROOM_PRELOAD", "numpy")
    monkeypatch.setattr(gpu_check, "LIMIT_S", 0.5)
    monkeypatch.setattr(gpu_check, "ALTERNATING", 4)
    return str(tmp_path / "cards")


def verdicts(steps: list[CheckStep]) -> dict[str, Verdict]:
    return {step.name: step.verdict for step in steps}


def test_what_no_program_can_use_is_not_called_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROOM_FAKE_DEVICE")
    *_, last = check_gpus()
    assert last.verdict is Verdict.IMPOSSIBLE and "simulated" in last.seen


def test_every_step_passes_on_a_card_that_behaves(cards: str) -> None:
    simulated.script(cards, {"FAKE-0": {"driver_mib": 450}})
    steps = list(check_gpus())
    found = verdicts(steps)
    assert [step for step in steps if step.verdict is Verdict.FAILED] == []
    assert [name for name, verdict in found.items() if verdict is Verdict.IMPOSSIBLE] in (
        ["modes", "bandwidth to the card"],
        ["bandwidth to the card"],  # where there is an nvidia-smi
    )
    assert {
        "card 0: same uuid for NVML and CUDA",
        "card 0: own process and memory are seen",
        "a session starts",
        "a product is the same as on the CPU",
        "a device-side assert is its job's failure",
        "... also if it surfaces after the job's last line",
        "out of memory is its job's failure",
        "an endless kernel is ended at its limit",
        "memory is flat over 4 jobs",
        "a command after a job that filled half the card",
        "two shared jobs",
    } <= set(found)
    said = {step.name: step.seen for step in steps}
    assert said["card 0: memory"] == (
        "24126 MiB for programs, 450 more are the driver's, 300 are a context's"
    )
    assert said["two shared jobs"].startswith("learned 1324 MiB, true 1324")


def look(steps: _Steps | None = None) -> dict[str, Verdict]:
    return verdicts(list(_look_at(inventory.find("0"), steps or _Steps())))


def test_what_the_driver_does_not_tell_in_a_container_is_not_possible(cards: str) -> None:
    simulated.script(cards, {"FAKE-0": {"pids": "elsewhere"}})
    steps = _Steps()
    assert look(steps)["card 0: own process and memory are seen"] is Verdict.IMPOSSIBLE
    assert gpu_check._share(inventory.find("0"), f"{cards}/profiles", steps).startswith(
        "learned 1324 MiB, true 1324"
    )


def test_a_card_that_is_another_one_for_the_program_fails(cards: str) -> None:
    script_device(cards, {"FAKE-0": {"uuid": "FAKE-7"}})
    assert look() == {"card 0": Verdict.FAILED}


def test_the_report_is_printed_and_has_an_exit_code(
    cards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.script(cards, {"FAKE-0": {"problem": "lost: fell off the bus"}})
    done = CliRunner().invoke(command, ["--gpu"])
    assert done.exit_code == 1
    assert "failed            card 0: lost: fell off the bus\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(("2 passed, 1 failed", "3 passed, 1 failed"))
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "")
    done = CliRunner().invoke(command, ["--gpu", "--json"])
    assert done.exit_code == 0
    assert [step["verdict"] for step in json.loads(done.stdout)] == ["not possible here"]
