"""Several users in one ledger, none of whom trusts the others: real users, hence as root only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import CardHeld, GpuError
from postroom.gpus.cards import inventory
from postroom.gpus.ledger.fair_share import NO_RECORD
from postroom.gpus.ledger.folder_ledger import local_part
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.gpus.ledger.recorder import Recorder
from postroom.system import shared_folder as folder_module
from tests.gpus.ledgerkit import REPOSITORY, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="other users can only be played by root")

ALICE, BOB = 61001, 61002  # numbers that no account has: nothing is left behind

# Everything is imported before root is given up: other users may not be able to read this Python.
HEAD = """
import fcntl, json, locale, os, pwd, signal, socket, sys, time
sys.path.insert(0, sys.argv[2])
from postroom.cli import gpu_lease, gpu_options, gpu_verbs
from postroom.errors import *
from postroom.gpus.cards import forked_probe, simulated
from postroom.gpus.ledger import folder_ledger
from postroom.gpus.ledger.protocol import open_ledger, LeaseRequest
uid, args = int(sys.argv[1]), sys.argv[3:]
os.setgroups([]); os.setgid(uid); os.setuid(uid)
def say(value):
    print(json.dumps(value), flush=True)
"""
HOLD = (
    "lease = open_ledger().acquire(LeaseRequest(name=args[0])); say(lease.cards); time.sleep(600)"
)

Acts = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A ledger as an administrator makes it: root's, for everybody, sticky."""
    import shutil
    import tempfile

    # Not below pytest's own folder, which other users may not enter.
    folder = Path(tempfile.mkdtemp(prefix="ledger-of-all-"))
    folder.chmod(0o1777)
    monkeypatch.setenv("POSTROOM_LEDGER", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def acts(start: Acts) -> Acts:
    """Starts a piece of Python as another user."""

    def acts(uid: int, code: str, *arguments: str) -> subprocess.Popen[str]:
        command = (sys.executable, "-c", HEAD + code, str(uid), str(REPOSITORY), *arguments)
        return start(*command, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})

    return acts


def answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_two_users_share_one_ledger(shared: Path, acts: Acts) -> None:
    alice = acts(ALICE, HOLD, "hers")
    first = answer(alice)
    bob = acts(BOB, HOLD, "his")
    assert set(first).isdisjoint(answer(bob))
    held = open_ledger().holders()
    assert [(entry.name, entry.uid) for entry in held] == [("hers", ALICE), ("his", BOB)]
    alice.kill()
    alice.wait()
    # Bob cannot tidy up after her, and need not: what is dead holds nothing.
    again = acts(
        BOB, "say(open_ledger().try_acquire(LeaseRequest(cards=(args[0],))).cards)", *first
    )
    assert answer(again) == first


def test_a_waiting_user_is_served_when_another_ends(shared: Path, acts: Acts) -> None:
    lease = open_ledger().try_acquire(LeaseRequest(count=4))
    alice = acts(ALICE, HOLD, "hers")
    wait_until(lambda: [entry.uid for entry in open_ledger().queue()] == [ALICE])
    lease.release()
    assert answer(alice)


RUN = """
os.umask(0)
gpu_verbs.run(["run", "--name", args[0], "--", "sh", "-c", "echo $0 $(id -u) >> $1", *args])
"""


def test_three_commands_of_one_user_are_not_last_behind_ten_of_another(
    shared: Path, acts: Acts
) -> None:
    """Real `postroom gpu run`s of two real users, on four simulated cards."""
    log = shared / "order"
    log.touch(mode=0o666)
    log.chmod(0o666)
    everything = open_ledger().try_acquire(LeaseRequest(count=4))
    for uid, name, count in ((ALICE, "many", 10), (BOB, "few", 3)):
        before = len(open_ledger().queue())
        for _ in range(count):
            acts(uid, RUN, name, str(log))
        wait_until(lambda due=before + count: len(open_ledger().queue()) == due, limit_s=120)
    everything.release()
    wait_until(lambda: len(log.read_text().split("\n")) == 14, limit_s=60, show=log.read_text)
    order = [line.split() for line in log.read_text().splitlines()]
    assert {tuple(line) for line in order} == {("many", f"{ALICE}"), ("few", f"{BOB}")}
    last = max(place for place, line in enumerate(order) if line[0] == "few")
    assert last < 10, order
    used = {entry.uid for entry in open_ledger().holders()}
    assert used <= {ALICE, BOB}


def test_nobody_can_remove_change_or_move_another_users_lease(shared: Path, acts: Acts) -> None:
    answer(acts(ALICE, HOLD, "hers"))
    code = """
folder = os.path.join(os.environ["POSTROOM_LEDGER"], "postroom-" + args[0])
path = os.path.join(folder, next(n for n in os.listdir(folder) if n.startswith("lease-")))
failed = []
for attempt in (
    lambda: os.unlink(path),
    lambda: os.rename(path, path + "x"),
    lambda: os.rename(folder, folder + "x"),
    lambda: os.open(path, os.O_RDWR),
    lambda: os.open(os.path.join(folder, "lease-forged"), os.O_WRONLY | os.O_CREAT),
    lambda: os.chmod(folder, 0o777),
    lambda: os.rmdir(folder),
):
    try:
        attempt()
        failed.append(False)
    except OSError:
        failed.append(True)
say(failed)
"""
    assert answer(acts(BOB, code, str(ALICE))) == [True] * 7
    assert [entry.uid for entry in open_ledger().holders()] == [ALICE]


def test_nobody_can_change_what_is_recorded_of_another_and_root_sees_what_one_understates(
    shared: Path, acts: Acts
) -> None:
    code = """
with open_ledger().acquire(LeaseRequest(name="hers")):
    pass
open_ledger().reserve(1, time.time() + 1000, time.time() + 2000)
lease = open_ledger().acquire(LeaseRequest(memory_mib=6144))
lease.amend(weight=1e-9, granted_at=time.time() + 1e9)
say(lease.cards)
time.sleep(600)
"""
    answer(acts(ALICE, code))
    ledger = local_part(open_ledger())
    accounts, (reservation,), _ = ledger.notes.used_and_reserved(time.time())
    assert accounts[ALICE][0].seconds > 0
    code = """
from contextlib import suppress
hers, his = (os.path.join(os.environ["POSTROOM_LEDGER"], "postroom-%s" % n) for n in (args[0], uid))
lies = json.dumps({args[0]: [1e9, time.time()]})
done = []
for name in ("usage", "ended", "log", next(n for n in os.listdir(hers) if n.startswith("reserve"))):
    for attempt in (os.unlink, lambda path: open(path, "w"), lambda path: os.rename(path, hers)):
        with suppress(OSError):
            attempt(os.path.join(hers, name))
            done.append(name)
with suppress(GpuError):
    open_ledger().unreserve(args[1])
    done.append("unreserve")
os.makedirs(his, exist_ok=True)
for name in ("usage", "recorded"):
    with open(os.path.join(his, name), "w") as file:
        file.write(lies)
say(done)
"""
    assert answer(acts(BOB, code, str(ALICE), reservation.reservation_id)) == []
    assert ledger.notes.used_and_reserved(time.time()) == (accounts, [reservation], NO_RECORD)
    # Half a minute of root's record: a quarter of a card, whatever she has written.
    sizes = {card.uuid: card.memory_mib for card in inventory.cards()}
    recorder = Recorder({}, 1e9)
    for clock_s in (0.0, 30.0):
        recorder.step(time.time(), clock_s, ledger.holders(), sizes)
    assert recorder.accounts[ALICE].seconds == pytest.approx(7.5, rel=1e-3)


def test_a_forged_record_speaks_for_its_writer_only(shared: Path, acts: Acts) -> None:
    code = """
lease = open_ledger().acquire(LeaseRequest(name="hers"))
lease.amend(user="root", uid=0)
say(lease.cards)
time.sleep(600)
"""
    answer(acts(ALICE, code))
    (entry,) = open_ledger().holders()
    assert (entry.uid, entry.user) == (ALICE, str(ALICE))


def test_another_users_lease_linked_into_ones_own_folder_counts_nothing(
    shared: Path, acts: Acts
) -> None:
    answer(acts(ALICE, HOLD, "hers"))
    (lease,) = (shared / f"postroom-{ALICE}").glob("lease-*")
    theirs = shared / f"postroom-{BOB}"
    theirs.mkdir()
    os.link(lease, theirs / lease.name)
    os.chown(theirs, BOB, BOB)
    assert len(open_ledger().holders()) == 1


def test_a_squatter_denies_and_is_named(shared: Path, acts: Acts) -> None:
    alice = acts(ALICE, HOLD, "hers")
    (card,) = answer(alice)
    code = """
folder = os.path.join(os.environ["POSTROOM_LEDGER"], "postroom-" + args[0])
name = next(n for n in os.listdir(folder) if n.startswith("lease-"))
fd = os.open(os.path.join(folder, name), os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
say("squatting")
time.sleep(600)
"""
    bob = acts(BOB, code, str(ALICE))
    wait_until(lambda: _is_blocked(bob.pid))
    alice.kill()
    alice.wait()
    assert answer(bob) == "squatting"
    with pytest.raises(CardHeld, match=f"its lock is kept by pid {bob.pid} .* user {BOB}"):
        open_ledger().try_acquire(LeaseRequest(cards=(card,)))
    bob.kill()
    bob.wait()
    open_ledger().try_acquire(LeaseRequest(cards=(card,))).release()


def _is_blocked(pid: int) -> bool:
    """Say whether a process waits for a lock."""
    with open("/proc/locks") as file:
        return any("->" in line and f" {pid} " in line for line in file)


def test_who_keeps_the_mutex_is_named(
    shared: Path, acts: Acts, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
fd = os.open(os.environ["POSTROOM_LEDGER"], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
say("squatting")
time.sleep(600)
"""
    bob = acts(BOB, code)
    answer(bob)
    monkeypatch.setattr(folder_module, "MUTEX_PATIENCE_S", 0.05)
    with pytest.raises(GpuError, match=f"kept locked by pid {bob.pid} .* of user {BOB}"):
        open_ledger().try_acquire(LeaseRequest())


def test_a_taken_name_costs_its_owner_nothing(shared: Path, acts: Acts) -> None:
    squatted = shared / f"postroom-{ALICE}"
    squatted.mkdir()
    os.chown(squatted, BOB, BOB)
    alice = acts(ALICE, HOLD, "hers")
    assert len(answer(alice)) == 1
    assert [entry.uid for entry in open_ledger().holders()] == [ALICE]


def test_planted_links_pipes_and_rubbish_do_no_harm(shared: Path, acts: Acts) -> None:
    folder = shared / f"postroom-{BOB}"
    folder.mkdir()
    os.symlink("/etc", shared / "postroom-9999")
    os.symlink("/etc/passwd", folder / "lease-link")
    os.mkfifo(folder / "lease-pipe")
    os.mkfifo(folder / "managed")
    os.mkfifo(folder / "log")
    (folder / "lease-rubbish").write_bytes(b"\x00\xff" * 1000)
    (folder / "verdict-x").write_text("[1, 2")
    (folder / "lease-folder").mkdir()
    for path in folder.iterdir():
        os.chown(path, BOB, BOB, follow_symlinks=False)
    os.chown(folder, BOB, BOB)
    ledger = open_ledger()
    with ledger.try_acquire(LeaseRequest(count=4)):
        assert len(ledger.holders()) == 1
        assert ledger.managed() is None
        assert ledger.quarantined() == {}
        ledger.log()
    assert answer(acts(ALICE, "say(open_ledger().try_acquire(LeaseRequest(count=4)).cards)"))


def test_a_living_record_that_cannot_be_read_denies_and_is_named(shared: Path, acts: Acts) -> None:
    code = """
folder = os.path.join(os.environ["POSTROOM_LEDGER"], "postroom-%d" % uid)
os.mkdir(folder)
fd = os.open(os.path.join(folder, "lease-odd"), os.O_RDWR | os.O_CREAT, 0o644)
fcntl.flock(fd, fcntl.LOCK_EX)
os.write(fd, b'{"version": 99}\\n')
say("there")
time.sleep(600)
"""
    answer(acts(BOB, code))
    with pytest.raises(CardHeld, match=f"unreadable record.*user {BOB}"):
        open_ledger().try_acquire(LeaseRequest())


def test_only_root_overrules_root_on_which_cards_are_managed(shared: Path, acts: Acts) -> None:
    answer(acts(ALICE, "open_ledger().manage(['FAKE-3']); say(1)"))
    assert open_ledger().managed() == ("FAKE-3",)
    open_ledger().manage(["FAKE-0"])
    answer(acts(ALICE, "open_ledger().manage(None); say(1)"))
    assert open_ledger().managed() == ("FAKE-0",)


def test_one_user_may_heal_what_another_quarantined(shared: Path, acts: Acts) -> None:
    answer(acts(ALICE, "open_ledger().quarantine('FAKE-1', 'it smells'); say(1)"))
    assert open_ledger().quarantined()["FAKE-1"].user == str(ALICE)
    answer(acts(BOB, "open_ledger().heal('FAKE-1'); say(1)"))
    assert open_ledger().quarantined() == {}


@pytest.mark.parametrize(
    ("mode", "owner", "complaint"),
    [(0o777, 0, "needs the sticky bit"), (0o1777, BOB, "belongs to user")],
)
def test_a_folder_where_others_could_remove_leases_is_refused(
    shared: Path, acts: Acts, mode: int, owner: int, complaint: str
) -> None:
    os.chown(shared, owner, owner)
    shared.chmod(mode)
    code = """
try:
    open_ledger()
except GpuError as error:
    say(str(error))
"""
    assert complaint in answer(acts(ALICE, code))
    os.chown(shared, 0, 0)


def test_another_users_lease_cannot_be_released(shared: Path, acts: Acts) -> None:
    (card,) = answer(acts(ALICE, HOLD, "hers"))
    code = """
said = []
gpu_lease.talk = said.append
assert gpu_verbs.run(["release", args[0], "--force"]) == 0
say(said)
"""
    (said,) = answer(acts(BOB, code, card.removeprefix("FAKE-")))
    assert said.endswith("it is another user's")
    assert [entry.uid for entry in open_ledger().holders()] == [ALICE]
