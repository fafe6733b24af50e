"""Which lines of a batch start when they share GPUs by memory."""

from __future__ import annotations

import pytest

from postroom.batch.memory_packer import Packer, name_of
from postroom.commands.command_source import CommandSourceError
from postroom.commands.spec import COMMAND, CommandSpec
from postroom.gpus.cards import inventory
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.gpus.memory.command_kind import kind_of_command
from postroom.gpus.memory.profiles import ProfileRow, Profiles
from postroom.jobs import Job


def job(number: int, command: str = "python fit.py") -> Job:
    return Job(COMMAND, command=command, cwd="/", folder=f"/out/job_{number}", number=number)


def packer(memory: str = "auto") -> Packer:
    where, cards = " of /out", inventory.cards()
    return Packer(cards, memory, where=where, ledger=open_ledger(), profiles=Profiles())


def know(command: str, peak_mib: int | None = None, **fields: int) -> None:
    kind = kind_of_command(command, folder="/")
    Profiles().add(kind, ProfileRow(kind.call, peak_mib, **fields))


def add(packer: Packer, *lines: CommandSpec) -> None:
    for number, line in enumerate(lines, start=1):
        packer.add(job(number, line.command), packer.check(line))


def names(jobs: list[Job]) -> list[str]:
    return [name_of(job) for job in jobs]


@pytest.fixture(autouse=True)
def _two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G")


def test_one_of_an_unknown_kind_measures_and_other_kinds_go_on() -> None:
    packing = packer()
    add(packing, CommandSpec("python a.py"), CommandSpec("python a.py"), CommandSpec("python b.py"))
    assert names(packing.begin(0.0, 9)) == ["job_1", "job_3"]
    packing.ended(job(3))
    assert packing.begin(1.0, 9) == []  # the first of its kind is still measured
    know("python a.py", 1000)
    packing.ended(job(1))
    assert names(packing.begin(2.0, 9)) == ["job_2"]
    assert len(packing) == 0


def test_another_s_measurement_is_waited_for() -> None:
    measuring = Profiles().try_measure("python a.py")
    assert measuring is not None
    packing = packer()
    add(packing, CommandSpec("python a.py"))
    assert packing.begin(0.0, 9) == []
    measuring.close()
    assert names(packing.begin(1.0, 9)) == ["job_1"]


def test_known_kinds_fill_the_cards_and_what_others_hold_counts() -> None:
    know("python a.py", 7000)
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-0",))):
        packing = packer()
        add(packing, *[CommandSpec("python a.py")] * 5)
        begun = packing.begin(0.0, 9)
    assert names(begun) == ["job_1", "job_2", "job_3"]
    assert {job.arguments["card"] for job in begun} == {"FAKE-1"}
    # What was promised and is not booked yet is not promised twice.
    assert names(packing.begin(1.0, 9)) == ["job_4", "job_5"]
    add(packing, CommandSpec("python a.py"), CommandSpec("python a.py"))
    assert names(packing.begin(2.0, 9)) == ["job_1"]


def test_a_large_line_that_finds_no_room_is_not_passed_by_small_ones_for_ever() -> None:
    know("python large.py", 20000)
    know("python small.py", 13000)
    ledger = open_ledger()
    shares = [
        ledger.try_acquire(LeaseRequest(cards=(u,), memory_mib=10000)) for u in ("FAKE-0", "FAKE-1")
    ]
    packing = packer()
    add(packing, *[CommandSpec("python small.py")] * 2, CommandSpec("python large.py"))
    assert names(packing.begin(0.0, 9)) == ["job_1"]  # the other card is kept for the large one
    for share in shares:
        share.release()
    assert names(packing.begin(1.0, 9)) == ["job_3"]


def test_it_says_who_has_the_room() -> None:
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-0", "FAKE-1"), name="theirs")):
        packing = packer()
        add(packing, CommandSpec("python a.py"))
        assert packing.begin(0.0, 9) == []
        assert packing.why().startswith("GPU 0 is held by 'theirs' of user ")


def test_a_line_s_own_memory_beats_that_of_the_batch_and_none_beats_the_card() -> None:
    packing = packer("20G")
    add(packing, CommandSpec("a", memory="3G"), CommandSpec("b"), CommandSpec("c", memory="23G"))
    begun = packing.begin(0.0, 9)
    assert [job.arguments["memory_mib"] for job in begun] == [23 * 1024, 20 * 1024, 3 * 1024]
    with pytest.raises(
        CommandSourceError, match="needs 25G of GPU memory, but the largest GPU, 0, has only 24G"
    ):
        packing.check(CommandSpec("d", memory="25G"))


def test_a_kind_that_ran_out_goes_only_where_there_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G,1x48G")
    know("python a.py", at_least_mib=24 * 1024)
    packing = packer()
    add(packing, CommandSpec("python a.py"))
    (begun,) = packing.begin(0.0, 9)
    assert begun.arguments["card"] == "FAKE-2"
