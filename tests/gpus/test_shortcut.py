"""The short way of `postroom gpu get` and its kin: as click reads it, and nothing that is slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.cli import gpu, gpu_lease, gpu_options, shortcut
from postroom.cli.gpu_words import GpuVerb
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from tests.gpus.ledgerkit import REPOSITORY, wait_until

VERBS: dict[str, GpuVerb] = {name: getattr(gpu_lease, f"{name}_") for name in shortcut.VERBS}
FLAGS = sorted({option.flag for verb in VERBS.values() for option in verb.all_options})
VALUES = ["0", "1", "2.5", "-1", "8G", "0,2", "", "a b", "nan", "1e3", " 7 ", "1_0", "=3"]


def by_click(name: str, words: list[str]) -> dict[str, Any]:
    command = gpu_options.as_command(name, VERBS[name])
    return command.make_context(name, list(words)).params


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare values and their types; a float that is no number is equal to itself, here."""
    return {k: repr(v) for k, v in one.items()} == {k: repr(v) for k, v in other.items()}


@settings(deadline=None)
@given(
    st.sampled_from(shortcut.VERBS),
    st.lists(
        st.one_of(
            st.sampled_from(FLAGS),
            st.sampled_from(VALUES),
            st.sampled_from(["--", "-h", "--help", "--no-such", "-n3", "-", "--js"]),
            st.builds("{}={}".format, st.sampled_from(FLAGS), st.sampled_from(VALUES)),
        ),
        max_size=6,
    ),
)
def test_what_the_shortcut_reads_click_reads_alike(name: str, words: list[str]) -> None:
    values = shortcut.read(VERBS[name], words)
    if values is not None:
        assert same(values, by_click(name, words))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("get", []),
        ("get", ["-n", "2"]),
        ("get", ["--memory", "8G", "--pack"]),
        ("get", ["--gpus=0,2", "--timeout", "2.5"]),
        ("get", ["--name", "night run", "--json"]),
        ("get", ["--ledger", "/tmp/x"]),
        ("get", ["--redis-server=h", "--redis-port", "1", "--redis-db=2", "--redis-prefix", "p"]),
        ("run", ["--", "python", "train.py", "--name", "x"]),
        ("run", ["-n", "2", "--name", "x", "--", "true"]),
        ("release", ["0"]),
        ("release", ["--force", "0", "--json"]),
        ("idle", []),
        ("idle", ["--json"]),
    ],
)
def test_plain_command_lines_take_the_shortcut(name: str, words: list[str]) -> None:
    values = shortcut.read(VERBS[name], words)
    assert values is not None
    assert same(values, by_click(name, words))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("get", ["--help"]),
        ("get", ["-n", "0"]),
        ("get", ["-n", "two"]),
        ("get", ["--timeout"]),
        ("get", ["--name", "a", "--name", "b"]),
        ("get", ["--json=yes"]),
        ("get", ["0"]),
        ("run", []),
        ("run", ["--"]),
        ("run", ["python", "train.py"]),
        ("release", []),
        ("release", ["0", "1"]),
        ("release", ["--", "0"]),
    ],
)
def test_what_is_not_plain_is_left_to_click(name: str, words: list[str]) -> None:
    assert shortcut.read(VERBS[name], words) is None


def test_every_verb_has_a_line_and_its_command() -> None:
    context = click.Context(gpu.command)
    assert isinstance(gpu.command, gpu.GpuVerbs)
    for name in gpu.VERBS:
        assert gpu.command.get_command(context, name) is not None


HEAVY = "click dataclasses inspect typing socket subprocess asyncio logging importlib.metadata"
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
        ("--gpus 0,1 -n 2", "--gpus names the cards; leave -n away"),
        ("--timeout=-1", "--timeout is a number of seconds, 0 or more"),
        ("--timeout nan", "--timeout is a number of seconds, 0 or more"),
    ],
)
def test_a_wrong_use_that_the_verb_finds_is_told_by_click(words: str, said: str) -> None:
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
