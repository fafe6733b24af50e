"""How `postroom gpu` reads its options, and that the verbs of scripts import nothing slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from postroom.cli import gpu_verbs, verbs
from postroom.gpus.cards import inventory
from postroom.gpus.ledger.activity import ActivityMeter
from postroom.gpus.ledger.folder_ledger import FolderLedger
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from tests.gpus.ledgerkit import REPOSITORY, wait_until


def read(verb: str, *words: str) -> dict[str, Any]:
    parser, _ = gpu_verbs.load(verb)
    return vars(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("get", {"count": 1, "memory": None, "gpus": None, "timeout_s": None, "json_": False}),
        ("get -n 2", {"count": 2}),
        ("get --memory 8G --pack", {"memory": "8G", "pack": True}),
        ("get --gpus=0,2 --timeout 2.5", {"gpus": "0,2", "timeout_s": 2.5}),
        ("get --timeout 90s", {"timeout_s": 90.0}),
        ("get --timeout 30m", {"timeout_s": 1800.0}),
        ("get --timeout 2h", {"timeout_s": 7200.0}),
        ("get --name night --json", {"name": "night", "json_": True}),
        ("get --ledger /tmp/x", {"ledger": "/tmp/x"}),
        ("get --redis-server=h --redis-port 1 --redis-db=2", {"redis_port": 1, "redis_db": 2}),
        ("run -- python x.py --name x", {"command": ["--", "python", "x.py", "--name", "x"]}),
        ("run -n 2 --name x -- true", {"count": 2, "name": "x", "command": ["--", "true"]}),
        ("run -n 2 python x.py -n 3", {"count": 2, "command": ["python", "x.py", "-n", "3"]}),
        ("release 0", {"which": "0", "force": False}),
        ("release --force 0 --json", {"which": "0", "force": True, "json_": True}),
        ("idle --json", {"json_": True}),
        ("watch --interval 1m", {"interval_s": 60.0}),
        ("manage --count 2", {"which": None, "count": 2}),
    ],
)
def test_options_are_read(words: str, found: dict[str, Any]) -> None:
    assert found.items() <= read(*words.split()).items()


@pytest.mark.parametrize(
    "words",
    [
        "get -n 0",
        "get -n two",
        "get --timeout",
        "get --timeout soon",
        "get --json=yes",
        "get --js",
        "get 0",
        "run",
        "run --",
        "release",
        "release 0 1",
        "watch --interval 0.01 --count 1",
        "nothing",
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_use_ends_with_2_and_says_how_to_get_help(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        gpu_verbs.run(words.split())
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert "Try 'postroom gpu" in said.err


@pytest.mark.parametrize("verb", gpu_verbs.VERBS)
def test_every_verb_has_its_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        gpu_verbs.run([verb, "--help"])
    assert end.value.code == 0
    assert "--ledger" in capsys.readouterr().out


def test_a_shell_completes_verbs_and_their_options() -> None:
    complete = ShellComplete(verbs.postroom, {}, "postroom", "_POSTROOM_COMPLETE")
    verbs_found = {item.value for item in complete.get_completions(["gpu"], "re")}
    assert verbs_found == {"record", "release", "report", "reservations", "reserve"}
    flags = {item.value for item in complete.get_completions(["gpu", "get"], "--me")}
    assert flags == {"--memory"}


def test_gpus_are_reserved_listed_and_given_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_verbs.run(["reserve", "2", "--for", "8h", "--at", "now+1h", "--name", "talk"]) == 0
    name = capsys.readouterr().out.strip()
    gpu_verbs.run(["reservations"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[0] == name and shown[1].split()[-1] == "talk"
    gpu_verbs.run(["list"])
    gpu_verbs.run(["unreserve", name])
    gpu_verbs.run(["reservations", "--json"])
    assert capsys.readouterr().out.strip().endswith("[]")


def test_who_has_used_how_much_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "postroom-rules.toml").write_text("[everybody]\ncards = 3\nhours = 2\n")
    (folder / "postroom-rules.toml").chmod(0o644)
    with open_ledger().try_acquire(LeaseRequest(count=2)):
        gpu_verbs.run(["shares"])
        shown = capsys.readouterr().out.splitlines()[1]
    assert " GPU hours  2 " in shown and "3 cards, 2 h at a stretch" in shown
    if os.geteuid() == 0:
        gpu_verbs.run(["record", "--count", "1"])
        assert list(folder.glob("*/recorded"))


def test_a_report_knows_when_a_command_ended_and_what_was_idle(
    folder: Path,
    start: Callable[..., subprocess.Popen[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu_run = [sys.executable, "-m", "postroom", "gpu", "run", "-n", "2", "--", "cat"]
    process = start(*gpu_run, stdin=subprocess.PIPE)
    wait_until(lambda: [*folder.glob("*/lease-*")])
    # Nobody asks for a card afterwards: a process that does not hold the lease writes this down.
    process.communicate()
    wait_until(lambda: [*folder.glob("*/ended")] and not [*folder.glob("*/lease-*")])
    gpu_verbs.run(["report", "--json"])
    line = json.loads(capsys.readouterr().out)["lines"][0]
    assert line["leases"] == 1 and 0 <= line["held_s"] < 1000
    ledger = open_ledger()
    with ledger.try_acquire(LeaseRequest(cards=("FAKE-0",))):
        now = time.time() + 4 * 3600
        monkeypatch.setattr("time.time", lambda: now)
        card = inventory.cards()[0]._replace(utilisation=0)
        meter = ActivityMeter()
        for n in range(200):
            meter.step(now - 100 * (199 - n), ledger.holders(), [card])
        FolderLedger(ledger.where).notes.write_activity("x", meter.seen, {})
        gpu_verbs.run(["list"])
        shown = capsys.readouterr().out
        assert shown.count("held, and idle since") == 1
        gpu_verbs.run(["report", "--by", "card"])
        found = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert found[0][:4] == ["CARD", "HELD", "BUSY", "IDLE"]
        assert found[1][:5] == ["0", "Simulated", "4.00", "0.00", "4.00"]


HEAVY = "click dataclasses inspect socket subprocess asyncio logging importlib.metadata"
HEAVY += " numpy torch rich psutil redis pynvml ctypes watchdog filelock platformdirs"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", ["get", "get --json --memory 1G", "run -- true", "idle"])
def test_the_verbs_of_scripts_import_nothing_heavy(words: str) -> None:
    code = (
        "import os, sys\n"
        "before = set(sys.modules)\n"
        f"sys.argv = ['postroom', 'gpu', *{words.split()!r}]\n"
        "os.execvpe = lambda *a: sys.exit(0)\n"
        "from postroom.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"sys.exit(sorted((set(sys.modules) - before) & set({HEAVY!r}.split())) or 0)"
    )
    # A shell of its own, so that the lease ends with it, and not with these tests.
    shell = ["bash", "-c", 'card=$("$0" -c "$1")', sys.executable, code]
    done = subprocess.run(shell, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpus 0,1 -n 2", "--gpus and -n cannot be combined"),
        ("--timeout=-1", "is not a duration"),
        ("--timeout nan", "is not a duration"),
    ],
)
def test_a_wrong_use_is_told_before_anything_is_done(words: str, said: str) -> None:
    command = [sys.executable, "-m", "postroom", "gpu", "get", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Try" in done.stderr
    assert said in done.stderr


@pytest.mark.usefixtures("folder")
def test_ctrl_c_ends_a_get_that_waits_with_130(start: Callable[..., Any]) -> None:
    ledger = open_ledger()
    with ledger.try_acquire(LeaseRequest(count=4)):
        waiting = start(sys.executable, "-m", "postroom", "gpu", "get", stderr=subprocess.PIPE)
        wait_until(lambda: ledger.queue(), show="nobody waits")
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait() == 130
        assert "Traceback" not in waiting.stderr.read()
        assert ledger.queue() == []


@pytest.mark.usefixtures("folder")
def test_an_answer_that_nobody_reads_is_no_traceback(tmp_path: Path) -> None:
    told, tell = os.pipe()
    os.close(told)
    command = [sys.executable, "-m", "postroom", "gpu", "idle"]
    done = subprocess.run(command, stdout=tell, stderr=subprocess.PIPE, cwd=REPOSITORY)
    os.close(tell)
    assert (done.returncode, done.stderr) == (0, b"")
