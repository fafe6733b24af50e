"""`postroom gpu` as a black box: real shells, real kills."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from tests.gpus.ledgerkit import REPOSITORY, wait_until

Start = Callable[..., subprocess.Popen[str]]
POSTROOM = f"{sys.executable} -m postroom"

pytestmark = pytest.mark.usefixtures("folder")


def postroom(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "postroom", "gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)


def owners() -> dict[str, int]:
    """Return who holds which card, by the pid of the owner."""
    return {uuid: entry.process.pid for entry in open_ledger().holders() for uuid in entry.cards}


@pytest.fixture
def bash(start: Start) -> Callable[[str], subprocess.Popen[str]]:
    """Starts a shell script; `$P` is postroom gpu."""

    def bash(script: str) -> subprocess.Popen[str]:
        return start("bash", "-c", f'P="{POSTROOM} gpu"\n{script}', stdin=subprocess.PIPE)

    return bash


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(
    "get",
    [
        "ID=$($P get)",
        "read ID < <($P get)",
        "ID=$($P get | tail -1)",
        "ID=$(true; timeout 60 $P get)",
        "ID=`cd /; $P get`",
        "ID=$($P get --redis-db 0 --redis-db 0)",
    ],
)
def test_the_lease_belongs_to_the_calling_shell_and_ends_with_it(
    bash: Callable[[str], subprocess.Popen[str]], get: str
) -> None:
    shell = bash(f"{get}\necho $ID\nread")
    card = line(shell)
    assert owners() == {f"FAKE-{card}": shell.pid}
    shell.send_signal(signal.SIGKILL)
    shell.wait()
    wait_until(lambda: owners() == {}, show=owners)


def test_a_background_child_of_a_killed_shell_keeps_the_card(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    shell = bash("ID=$($P get)\nsleep 600 & echo $!\nread")
    child = int(line(shell))
    shell.kill()
    shell.wait()
    assert len(owners()) == 1
    # Seen by the keeper, too: it had time to take note of the death before this answer came.
    postroom("idle")
    assert len(owners()) == 1
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: owners() == {}, show=owners)


def test_a_child_that_has_left_the_session_keeps_the_card(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    shell = bash("ID=$($P get)\nsetsid sleep 600 & echo $!\nread")
    child = int(line(shell))
    (entry,) = open_ledger().holders()
    assert entry.keeper is not None
    keeper = entry.keeper.pid

    def watched() -> int:
        found = 0
        for name in os.listdir(f"/proc/{keeper}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it has just been closed
                found += "pidfd" in os.readlink(f"/proc/{keeper}/fd/{name}")
        return found

    wait_until(lambda: watched() == 2)
    shell.kill()
    shell.wait()
    wait_until(lambda: watched() == 1)
    assert len(owners()) == 1
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: owners() == {}, show=owners)


def test_a_child_born_a_moment_before_the_kill_keeps_the_card(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    shell = bash("ID=$($P get)\nsleep 600 & echo $!; kill -9 $$")
    child = int(line(shell))
    shell.wait()
    postroom("idle")
    assert len(owners()) == 1
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: owners() == {}, show=owners)


def test_the_next_script_does_not_inherit_the_card_of_the_last(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    outer = bash(f"bash -c 'ID=$({POSTROOM} gpu get)'\nsleep 600 & echo next; wait")
    assert line(outer) == "next"
    wait_until(lambda: owners() == {}, show=owners)
    assert outer.poll() is None


def test_what_ran_before_the_get_does_not_keep_the_card(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    shell = bash("sleep 600 & ID=$($P get)\necho $ID\nread")
    line(shell)
    shell.kill()
    shell.wait()
    wait_until(lambda: owners() == {}, show=owners)


def test_each_subshell_in_the_background_has_a_card_of_its_own(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    shell = bash("(ID=$($P get); echo $BASHPID $ID; exec 1>&-; read) <&0 &\nwait\necho done; read")
    pid, card = line(shell).split()
    assert owners() == {f"FAKE-{card}": int(pid)}
    assert shell.stdin is not None
    shell.stdin.write("\n")
    shell.stdin.flush()
    assert line(shell) == "done"
    wait_until(lambda: owners() == {}, show=owners)
    assert shell.poll() is None


def test_a_late_or_repeated_release_is_harmless(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    script = "ID=$($P get --gpus 0)\n$P release $ID\necho released\nread\n$P release $ID 2>&1\nread"
    first = bash(script)
    assert line(first) == "released"
    second = bash("ID=$($P get --gpus 0)\necho $ID\nread")
    assert line(second) == "0"
    assert first.stdin is not None
    first.stdin.write("\n")
    first.stdin.flush()
    assert "not released: 0 is held by" in line(first)
    assert owners() == {"FAKE-0": second.pid}


def test_a_lease_of_another_shell_is_released_by_force_only(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    shell = bash("ID=$($P get)\necho $ID\nread")
    card = line(shell)
    assert "belongs to another shell" in postroom("release", card).stderr
    assert len(owners()) == 1
    answer = json.loads(postroom("release", card, "--force", "--json").stdout)
    assert len(answer["released"]) == 1
    assert owners() == {}


def test_a_waiting_get_gives_up_when_its_shell_is_killed(
    bash: Callable[[str], subprocess.Popen[str]],
) -> None:
    ledger = open_ledger()
    with ledger.try_acquire(LeaseRequest(count=4)):
        shell = bash("ID=$($P get 2>/dev/null)")
        wait_until(lambda: len(ledger.queue()) == 1, show=ledger.queue)
        shell.kill()
        shell.wait()
        wait_until(lambda: ledger.queue() == [], show=ledger.queue)


def test_a_get_that_times_out_says_why_and_ends_with_75() -> None:
    with open_ledger().try_acquire(LeaseRequest(count=4, name="the big one")):
        done = postroom("get", "--timeout", "0.05")
    assert done.returncode == 75
    assert done.stdout == ""
    assert "waiting: card 0 is held by 'the big one'" in done.stderr


def test_several_cards_are_printed_as_cuda_takes_them() -> None:
    answer = json.loads(postroom("get", "-n", "2", "--name", "pair", "--json").stdout)
    assert len(answer["ids"]) == 2
    assert answer["environment"]["CUDA_VISIBLE_DEVICES"] == ",".join(answer["ids"])
    assert answer["owner_pid"] == os.getpid()
    postroom("release", answer["lease_id"], "--force")
    assert owners() == {}


def test_run_passes_environment_and_exit_code_on() -> None:
    script = "echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES $POSTROOM_GPU; exit 7"
    done = postroom("run", "--gpus", "2", "--", "bash", "-c", script)
    assert done.stdout == "PCI_BUS_ID 2 FAKE-2\n"
    assert done.returncode == 7
    assert owners() == {}


def test_run_holds_the_card_until_the_last_child_is_gone(start: Start) -> None:
    script = "sleep 600 & echo $!"
    run = start(sys.executable, "-m", "postroom", "gpu", "run", "--", "bash", "-c", script)
    child = int(line(run))
    run.wait()
    assert len(owners()) == 1
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: owners() == {}, show=owners)


def test_run_says_what_could_not_be_started() -> None:
    missing = postroom("run", "--", "no-such-program")
    assert (missing.returncode, "no-such-program" in missing.stderr) == (127, True)
    assert postroom("run", "--", "/etc/passwd").returncode == 126
    assert owners() == {}


def test_run_leaves_signals_as_a_shell_would(start: Start) -> None:
    done = postroom("run", "--", "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & 1 << (signal.SIGPIPE - 1)


def test_every_listing_speaks_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger()
    lease = ledger.try_acquire(LeaseRequest(cards=("FAKE-1",), name="demo", memory_mib=8192))
    answers: dict[str, Any] = {}
    for verb in ("list", "idle", "managed", "info", "queue", "log", "purge"):
        done = postroom(verb, "--json")
        assert (done.returncode, done.stderr) == (0, ""), verb
        answers[verb] = json.loads(done.stdout)
    card = answers["list"][1]
    assert (card["state"], card["reserved_mib"]) == ("shared", 8192)
    assert (card["leases"][0]["name"], card["leases"][0]["pid"]) == ("demo", os.getpid())
    assert answers["idle"] == ["0", "2", "3"]
    assert answers["managed"] == ["0", "1", "2", "3"]
    assert [entry["what"] for entry in answers["log"]] == ["granted"]
    assert answers["info"]["cards"][0]["uuid"] == "FAKE-0"
    watched = postroom("watch", "--count", "1", "--json")
    assert json.loads(watched.stdout) == answers["list"]
    lease.release()


def test_the_list_is_for_people_and_a_name_cannot_steer_the_terminal() -> None:
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-1",), name="night\x1b[2J\nshift")):
        shown = postroom("list").stdout.splitlines()
    assert len(shown) == 5
    assert "night?[2J?shift" in shown[2]
    assert str(os.getpid()) in shown[2]


def test_foreign_use_shows_in_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path))
    from postroom.gpus.cards import simulated

    with simulated.Claim("FAKE-2", 5000):
        card = json.loads(postroom("list", "--json").stdout)[2]
    assert card["state"] == "foreign"
    assert [(use["pid"], use["used_mib"]) for use in card["foreign"]] == [(os.getpid(), 5000)]


def test_a_stranger_is_named_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path))
    from postroom.gpus.cards import simulated

    command = (sys.executable, "-m", "postroom", "gpu", "run", "--gpus", "2")
    with simulated.Claim("FAKE-2", 5000):
        waiting = start(*command, "--", "true", stderr=subprocess.PIPE)
        assert waiting.stderr is not None
        said = waiting.stderr.readline()
        assert "waiting: card 2 is used without a lease by user " in said
        assert f"pid {os.getpid()} (" in said and "--beside-strangers" in said
        assert waiting.poll() is None
        beside = postroom("run", "--gpus", "2", "--beside-strangers", "--", "true")
        assert (beside.returncode, "also used by" in beside.stderr) == (0, True)
        assert postroom("run", "--gpus", "2", "--timeout", "0", "--", "true").returncode == 75
    assert waiting.wait(30) == 0


def test_managing_quarantining_and_healing() -> None:
    assert postroom("manage", "1,3").returncode == 0
    assert postroom("idle").stdout.split() == ["1", "3"]
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-1",))):
        refused = postroom("manage", "3")
        assert refused.returncode == 2
        assert "still held by" in refused.stderr
        assert postroom("manage", "3", "--force").returncode == 0
    assert postroom("managed").stdout.split() == ["3"]
    postroom("manage", "all")
    postroom("quarantine", "0", "--reason", "fans are silent")
    assert "fans are silent" in postroom("list").stdout
    assert postroom("idle").stdout.split() == ["1", "2", "3"]
    postroom("heal", "0")
    assert postroom("idle").stdout.split() == ["0", "1", "2", "3"]


def test_wrong_use_is_a_sentence_and_code_2() -> None:
    for arguments in (
        ("get", "--gpus", "9"),
        ("get", "--memory", "lots"),
        ("get", "-n", "5"),
        ("list", "--redis-server", "127.0.0.1", "--redis-port", "1"),
        ("manage",),
    ):
        done = postroom(*arguments)
        assert done.returncode == 2, arguments
        assert done.stderr
        assert "Traceback" not in done.stderr


def test_a_holder_without_a_name_is_called_by_its_user() -> None:
    with open_ledger().try_acquire(LeaseRequest(count=4)):
        done = postroom("get", "--timeout", "0.05")
    assert "waiting: card 0 is held by user " in done.stderr
