"""What forms and JSON ask for, as jobs that would be queued."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.errors import PostroomError
from postroom.queue.submission import submit
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.web.submit_plan import Commands, Sweep, commands_of, specs_of, sweep_of


def asks(tmp_path: Path, wanted: Commands | Sweep) -> list[CommandSpec]:
    return specs_of(LocalFiles(), create_base(tmp_path / "base"), wanted, "/")


def test_each_line_is_a_job_and_comments_are_none(tmp_path: Path) -> None:
    wanted = commands_of({"commands": "echo 1\r\n\r\n# no\r\n  echo 2  ", "name": "two"})
    found = asks(tmp_path, wanted)
    assert [(ask.command, ask.name, ask.cwd) for ask in found] == [
        ("echo 1", "two-1", "/"),
        ("echo 2", "two-2", "/"),
    ]


def test_all_options_of_a_form_arrive(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    (earlier,) = submit(LocalFiles(), base, [CommandSpec("true", cwd="/")])
    fields = {
        "commands": "train",
        "name": "one",
        "project": "p",
        "cwd": "/tmp",
        "env": "A=1\nB=x=y",
        "timeout": "1.5h",
        "retries": "2",
        "priority": "-3",
        "gpus": "2",
        "memory": "20G",
        "after": earlier.short,
        "held": "on",
    }
    wanted = commands_of(fields)
    (ask,) = asks(tmp_path, wanted)
    assert wanted.project == "p"
    assert (ask.name, ask.cwd, ask.env) == ("one", "/tmp", {"A": "1", "B": "x=y"})
    assert (ask.timeout_s, ask.retries) == (5400.0, 2)
    scheduling = ask.scheduling
    assert (scheduling.priority, scheduling.gpus, scheduling.memory_mib) == (-3, 2, 20480)
    assert (scheduling.after, scheduling.held) == ((earlier,), True)


def test_a_sweep_is_every_combination_but_those_left_out(tmp_path: Path) -> None:
    fields = {"template": "t {a} {b}", "values": "a=1,2\nb=1:3", "where": "a*b<4", "name": "s"}
    found = asks(tmp_path, sweep_of(fields))
    assert [ask.command for ask in found] == ["t 1 1", "t 1 2", "t 1 3", "t 2 1"]
    assert found[3].arguments == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"commands": "# nothing"}, "at least one command"),
        ({"commands": "x", "env": "A"}, "NAME=VALUE"),
        ({"commands": "x", "env": "A B=1"}, "NAME=VALUE"),
        ({"commands": "x", "timeout": "soon"}, "90s, 30m"),
        ({"commands": "x", "retries": "many"}, "no whole number"),
        ({"commands": "x", "priority": "9999999"}, "priority"),
        ({"commands": "x", "memory": "much"}, "write 8G"),
        ({"commands": "x", "after": "ffffff/1"}, "no run"),
        ({"commands": "x", "cwd": "/not/there"}, "does not exist"),
        ({"commands": "x\0y"}, "zero byte"),
        ({"commands": "x", "project": "p" * 100}, "project"),
        ({"commands": "x", "project": "a\x07b"}, "project"),
    ],
)
def test_what_cannot_be_queued_is_a_sentence(
    tmp_path: Path, fields: dict[str, str], words: str
) -> None:
    with pytest.raises(PostroomError, match=words):
        asks(tmp_path, commands_of(fields))


@pytest.mark.parametrize(
    ("values", "where", "words"),
    [
        ("a=1:1000000\nb=1:1000000", "a<0", "combinations"),
        ("a=1:300\nb=1:300", "", "more than 10000"),
        ("a=1,2\nb=1", "a>5", "no combination"),
        ("a=1", "", "no values are given"),
        ("a=1\nb=1", "__import__('os')", "more than arithmetic"),
        ("", "", "give values"),
    ],
)
def test_a_sweep_that_goes_nowhere_is_a_sentence(
    tmp_path: Path, values: str, where: str, words: str
) -> None:
    with pytest.raises(PostroomError, match=words):
        asks(tmp_path, sweep_of({"template": "{a} {b}", "values": values, "where": where}))
