"""The real nvidia-ml-py against a stub of the driver's library, compiled here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom.errors import CardHeld, GpuError
from postroom.gpus.cards import inventory, nvml
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.session.card_health import DriverWatch
from tests.gpus.ledgerkit import HERE, REPOSITORY, needs, wait_until

TWO_CARDS = """\
driver 570.124
card 0 GPU-aaaa1111 24576 300 0 35 21500 NVIDIA GeForce RTX 4090
card 1 GPU-bbbb2222 81920 70000 97 71 399000 NVIDIA A100 80GB
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The stub of today's driver, and one of an old driver."""
    compiler = needs("gcc")
    found = {}
    for name, options in {"new": [], "old": ["-DOLD"]}.items():
        folder = tmp_path_factory.mktemp(f"nvml-{name}")
        library = folder / "libnvidia-ml.so.1"
        source = HERE / "stub_nvml.c"
        subprocess.run([compiler, "-shared", "-fPIC", *options, "-o", library, source], check=True)
        found[name] = folder
    return found


@pytest.fixture
def driver(
    libraries: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Puts a scenario in place; called again, it changes it while others look on."""
    script = tmp_path / "scenario"

    def driver(scenario: str, library: str = "new") -> None:
        temporary = tmp_path / "scenario.new"
        temporary.write_text(scenario)
        os.replace(temporary, script)
        monkeypatch.delenv("POSTROOM_FAKE_GPUS", raising=False)
        monkeypatch.setenv("NVML_STUB", str(script))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries[library]))

    return driver


def test_cards_are_listed_with_all_that_nvml_knows(driver: Callable[..., None]) -> None:
    driver(TWO_CARDS)
    first, second = inventory.cards()
    assert (first.index, first.uuid, first.name) == (0, "GPU-aaaa1111", "NVIDIA GeForce RTX 4090")
    assert (first.memory_mib, first.used_mib, first.free_mib) == (24576, 300, 24276)
    assert (second.utilisation, second.temperature, second.power) == (97, 71, 399.0)
    assert (second.kind, second.problem, second.processes) == ("cuda", "", ())


def test_a_busy_card_names_its_processes_and_their_users(driver: Callable[..., None]) -> None:
    me = os.getpid()
    driver(TWO_CARDS + f"process 1 {me} 69000 compute\nprocess 0 {me} 250 graphics\n")
    first, second = inventory.cards()
    (training,) = second.processes
    assert (training.pid, training.used_mib, training.compute) == (me, 69000, True)
    assert (
        training.user
        == subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    )
    assert [process.compute for process in first.processes] == [False]


def test_a_process_that_cannot_be_seen_has_no_user(driver: Callable[..., None]) -> None:
    driver(TWO_CARDS + "process 1 4000000 69000 compute\n")
    (foreign,) = inventory.cards()[1].processes
    assert (foreign.user, foreign.command) == ("?", "?")


def test_memory_that_was_not_freed_shows_although_nobody_uses_the_card(
    driver: Callable[..., None],
) -> None:
    driver(TWO_CARDS)
    second = inventory.cards()[1]
    assert second.used_mib == 70000
    assert not second.processes


def test_pids_of_another_namespace_are_nobodys_here(driver: Callable[..., None]) -> None:
    """In a container NVML shows our own process by its pid on the host."""
    driver(TWO_CARDS + f"process 0 {os.getpid()} 300 compute\nhost_pids 8000000\n")
    card = inventory.cards()[0]
    assert [(usage.pid, usage.user) for usage in card.processes] == [(os.getpid() + 8000000, "?")]
    assert card.unexplained_mib == 300


def test_memory_of_an_ended_process_may_be_used_for_a_while(driver: Callable[..., None]) -> None:
    driver(TWO_CARDS + f"lingers 0 5000 {time.time() + 600:.0f}\nlingers 1 5000 1\n")
    first, second = inventory.cards()
    assert (first.used_mib, first.unexplained_mib, second.used_mib) == (5300, 5300, 70000)


def test_a_process_that_ends_explains_no_memory(driver: Callable[..., None]) -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    me = os.getpid()
    driver(TWO_CARDS + f"process 1 {child.pid} 60000 compute\nprocess 1 {me} 10000 compute\n")
    second = inventory.cards()[1]
    child.wait()
    assert [usage.user == "?" for usage in second.processes] == [True, False]
    assert second.unexplained_mib == 60000


def test_a_lost_card_is_a_state_and_is_not_handed_out(
    driver: Callable[..., None], folder: Path
) -> None:
    driver(TWO_CARDS + "lost 0\n")
    first, second = inventory.cards()
    assert first.uuid == "GPU-aaaa1111"
    assert first.problem.startswith("lost: ")
    assert inventory.pin(second)["CUDA_VISIBLE_DEVICES"] == second.uuid, "for CUDA it is card 0"
    assert second.problem == ""
    ledger = open_ledger()
    with ledger.try_acquire(LeaseRequest()) as lease:
        assert lease.cards == ("GPU-bbbb2222",)
        with pytest.raises(CardHeld, match="card 0 has a problem: lost"):
            ledger.try_acquire(LeaseRequest(cards=("GPU-aaaa1111",)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ecc 1 3", "3 uncorrectable ECC errors"),
        ("recovery 1 2", "the machine needs a reboot"),
        ("recovery 1 1", "the card needs a reset"),
        ("remap_failed 1", "could not be remapped"),
    ],
)
def test_what_nvml_holds_against_a_card_is_its_problem(
    driver: Callable[..., None], line: str, reason: str
) -> None:
    driver(TWO_CARDS + line + "\n")
    first, second = inventory.cards()
    assert reason in second.problem
    assert first.problem == ""


def test_a_watching_probe_remembers_a_critical_xid_and_forgives_a_users_own_fault(
    driver: Callable[..., None],
) -> None:
    driver(TWO_CARDS)
    with nvml.NvmlProbe() as probe:
        assert [card.problem for card in probe.cards()] == ["", ""]
        driver(TWO_CARDS + "xid 0 31\nxid 1 79\n")
        probe.cards()
        driver(TWO_CARDS)
        assert [card.problem for card in probe.cards()] == ["", "the driver reported Xid 79"]


def test_an_xid_from_before_the_start_is_not_told(driver: Callable[..., None]) -> None:
    driver(TWO_CARDS + "xid 1 79\n")
    with nvml.NvmlProbe() as probe:
        assert [card.problem for card in probe.cards()] == ["", ""]


def test_a_session_hears_of_an_xid_of_any_of_its_cards_although_it_did_not_ask_yet(
    driver: Callable[..., None], tmp_path: Path
) -> None:
    driver(TWO_CARDS + "xid 0 79\n")
    watches = [DriverWatch(gpu) for gpu in ("GPU-aaaa1111,GPU-bbbb2222", "GPU-aaaa1111")]
    listeners = tmp_path / "scenario.listeners"
    wait_until(lambda: listeners.exists() and len(listeners.read_text().split()) == 4)
    driver(TWO_CARDS + "xid 0 79\nxid 1 48\n")
    assert [watch.problem() for watch in watches] == ["the driver reported Xid 48", ""]
    driver(TWO_CARDS)
    assert watches[0].problem() == "the driver reported Xid 48", "it is told once, and remembered"
    for watch in watches:
        watch.close()


def test_a_watch_asks_again_after_its_driver_hung(
    driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_NVML_TIMEOUT_S", "0.5")
    driver(TWO_CARDS + "hang nvmlDeviceGetUUID\n")
    with inventory.CardWatch() as watch:
        with pytest.raises(GpuError, match="NVML has not answered"):
            watch.cards()
        driver(TWO_CARDS)
        monkeypatch.setenv("POSTROOM_NVML_TIMEOUT_S", "30")
        assert len(watch.cards()) == 2


def test_memory_that_the_driver_keeps_is_no_part_of_a_card(
    driver: Callable[..., None], folder: Path
) -> None:
    """Two halves of a card of 24,564 MiB, of which the driver keeps 450, do not fit on it."""
    driver("driver 570.1\ncard 0 GPU-aaaa1111 24564 0 0 35 21500 Card\nreserved 0 450\n")
    (card,) = inventory.cards()
    assert (card.memory_mib, card.driver_mib, card.used_mib) == (24114, 450, 0)
    ledger = open_ledger()
    half = LeaseRequest(memory_mib=12282)
    with ledger.try_acquire(half), pytest.raises(CardHeld):
        ledger.try_acquire(half)


def test_an_old_driver_counts_what_it_keeps_as_used(driver: Callable[..., None]) -> None:
    driver("driver 470.1\ncard 0 GPU-aaaa1111 24564 10 0 35 21500 Card\nreserved 0 450\n", "old")
    (card,) = inventory.cards()
    assert (card.memory_mib, card.driver_mib, card.used_mib) == (24564, 0, 460)


def test_memory_that_the_driver_does_not_tell_is_not_known(driver: Callable[..., None]) -> None:
    me = os.getpid()
    driver(TWO_CARDS + f"process 0 {me} - compute\nprocess 1 {me} 0 compute\n")
    assert [card.processes[0].used_mib for card in inventory.cards()] == [None, None]


def test_cards_that_nvlink_joins_are_known_if_asked_for(driver: Callable[..., None]) -> None:
    driver(TWO_CARDS + "card 2 GPU-cccc3333 24576 0 0 35 0 Third\nnvlink 0 2\n")
    with inventory.CardWatch() as watch:
        assert [card.linked for card in watch.cards()] == [(), (), ()]
        assert [card.linked for card in watch.cards(links=True)] == [
            ("GPU-cccc3333",),
            (),
            ("GPU-aaaa1111",),
        ]


def test_an_old_driver_lists_its_cards_without_what_it_does_not_know(
    driver: Callable[..., None],
) -> None:
    driver(TWO_CARDS + f"process 1 {os.getpid()} 69000 compute\n", "old")
    first, second = inventory.cards()
    assert (first.memory_mib, first.problem) == (24576, "")
    assert second.processes == ()


def test_mig_slices_are_cards_of_their_own_and_pinned_by_uuid(
    driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(TWO_CARDS + "mig 1 MIG-11111111 40960 10\nmig 1 MIG-22222222 20480 0\n")
    whole, large, small = inventory.cards()
    assert whole.kind == "cuda"
    assert [(card.kind, card.uuid, card.memory_mib) for card in (large, small)] == [
        ("mig", "MIG-11111111", 40960),
        ("mig", "MIG-22222222", 20480),
    ]
    assert inventory.pin(small)["CUDA_VISIBLE_DEVICES"] == "MIG-22222222"
    assert inventory.pin(whole)["CUDA_VISIBLE_DEVICES"] == whole.uuid, "CUDA may count otherwise"
    with pytest.raises(GpuError, match="only one MIG slice"):
        inventory.pin(large, small)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2222")
    assert [card.uuid for card in inventory.cards()] == ["MIG-22222222"]


def test_without_a_driver_there_are_no_cards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("POSTROOM_FAKE_GPUS")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    if any(Path("/dev").glob("nvidia*")):
        pytest.skip("this machine has a driver")
    assert inventory.cards() == []


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (18, "was updated while it was loaded"),
        (13, "too old"),
        (4, "cannot be used"),
        (999, "nvidia-smi"),
    ],
)
def test_a_broken_driver_is_one_clear_sentence(
    driver: Callable[..., None], code: int, sentence: str
) -> None:
    driver(f"init {code}\n{TWO_CARDS}")
    with pytest.raises(GpuError, match=sentence):
        inventory.cards()


def test_a_library_without_hardware_means_no_cards(driver: Callable[..., None]) -> None:
    if nvml._hardware():
        pytest.skip("this machine has an NVIDIA card")
    driver(f"init 9\n{TWO_CARDS}")
    assert inventory.cards() == []


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_hanging_driver_is_said_so_and_hangs_nobody(
    driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    driver(f"{TWO_CARDS}hang {function}\n")
    monkeypatch.setenv("POSTROOM_NVML_TIMEOUT_S", "0.5")
    with pytest.raises(GpuError, match="the driver hangs"):
        inventory.cards()


def gpu(*words: str) -> subprocess.CompletedProcess[str]:
    """Call `postroom gpu`, which forks the child that asks NVML."""
    command = [sys.executable, "-m", "postroom", "gpu", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)


@pytest.mark.usefixtures("folder")
def test_a_script_sees_the_cards_and_its_command_has_no_child(driver: Callable[..., None]) -> None:
    driver(TWO_CARDS)
    assert gpu("idle").stdout == "0\n1\n"
    script = "echo $CUDA_VISIBLE_DEVICES $(cat /proc/$$/task/$$/children)"
    assert gpu("run", "--gpus", "1", "--", "bash", "-c", script).stdout.split()[0] == "1"
    shown = gpu("run", "--", "cat", "/proc/self/task/self/children").stdout
    assert shown == ""


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_hanging_driver_hangs_no_script(
    driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    driver(f"{TWO_CARDS}hang {function}\n")
    monkeypatch.setenv("POSTROOM_NVML_TIMEOUT_S", "0.5")
    done = gpu("get")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the driver hangs" in done.stderr


@pytest.mark.usefixtures("folder")
def test_a_child_that_breaks_off_is_told(
    driver: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(TWO_CARDS)
    (tmp_path / "pynvml.py").write_text("raise ImportError('no bindings today')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{REPOSITORY}")
    done = gpu("get")
    assert done.returncode == 2
    assert "NVML failed: ImportError: no bindings today" in done.stderr


@pytest.mark.usefixtures("folder")
def test_a_release_that_cannot_know_the_cards_says_so(driver: Callable[..., None]) -> None:
    driver(f"init 18\n{TWO_CARDS}")
    done = gpu("release", "0")
    assert done.returncode == 2
    assert "the NVIDIA driver was updated while it was loaded" in done.stderr
