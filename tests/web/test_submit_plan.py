"""What forms and JSON ask for, as jobs that would be queued."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.cli.submit import command
from postroom.commands.spec import CommandSpec
from postroom.errors import PostroomError
from postroom.queue.queue_view import QueueView
from postroom.queue.submission import submit
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.scheduling import PROJECT_GROUP
from postroom.web.forms import DEFAULTS
from postroom.web.submit_plan import Commands, Sweep, commands_of, form_of, specs_of, sweep_of


def asks(tmp_path: Path, wanted: Commands | Sweep) -> list[CommandSpec]:
    with QueueView(create_base(tmp_path / "base")) as view:
        return specs_of(view, wanted, "/")


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
        "time_limit": "1.5h",
        "grace": "30s",
        "shell": "zsh",
        "retries": "2",
        "priority": "-3",
        "gpus": "2",
        "memory": "20G",
        "over": "kill",
        "only_on": "local",
        "require": "A100|24G",
        "begin": "now+2h",
        "after": earlier.short,
        "after_any": "@",
        "hold": "on",
        "container": "pytorch:2",
        "array": "",
        "limit": "3",
        "stop_after_failures": "4",
        "snapshot": "on",
        "split_output": "on",
        "notify": "true\nhttps://ntfy.example/x",
    }
    # Each option of the command line, but those for a terminal; commands are a field, not a file.
    names = {str(option.name) for option in command.params}
    here = {"only_on" if name == "where" else name for name in names}
    assert set(fields) - {"commands"} == here - {
        "words",
        "file",
        "wait",
        "dry_run",
        "json_",
        "base",
    }
    assert set(fields) <= set(DEFAULTS)
    wanted = commands_of(fields)
    (ask,) = asks(tmp_path, wanted)
    assert wanted.project == "p"
    assert (ask.name, ask.cwd, ask.env) == ("one", "/tmp", {"A": "1", "B": "x=y"})
    assert (ask.timeout_s, ask.retries, ask.over) == (5400.0, 2, "kill")
    scheduling = ask.scheduling
    assert (scheduling.priority, scheduling.gpus, scheduling.memory_mib) == (-3, 2, 20480)
    assert (scheduling.after, scheduling.held) == ((earlier,), True)
    assert (scheduling.after_any, scheduling.where) == ((earlier,), "local")
    assert (scheduling.require, scheduling.lasts_s) == ("A100|24G", 5430.0)
    assert scheduling.begin_at > 1e9
    assert (scheduling.group, scheduling.group_limit) == (PROJECT_GROUP, 3)
    assert scheduling.group_failures == 4
    assert (ask.grace_s, ask.shell, ask.merged) == (30.0, "zsh", False)
    assert ask.container == "pytorch:2"
    assert (wanted.snapshot, wanted.notify) == (True, ["true", "https://ntfy.example/x"])


def test_an_array_is_each_command_once_for_each_number(tmp_path: Path) -> None:
    fields = {"commands": "train", "name": "a", "array": "1-9:4%2"}
    found = asks(tmp_path, commands_of(fields))
    assert [(one.number, one.name) for one in found] == [(1, "a-1"), (5, "a-5"), (9, "a-9")]
    assert {one.scheduling.group_limit for one in found} == {2}
    assert len({one.scheduling.group for one in found}) == 1


def test_a_form_that_edits_a_job_asks_for_the_same_job(tmp_path: Path) -> None:
    fields = {
        "commands": "for i in 1 2\ndo echo $i  # twice\n\ndone",
        "whole": "on",
        "name": "loop",
        "cwd": "/tmp",
        "env": "A=1",
        "time_limit": "90m",
        "memory": "20G",
        "require": "A100",
    }
    (ask,) = asks(tmp_path, commands_of(fields))
    assert ask.command == fields["commands"]
    (again,) = asks(tmp_path, commands_of(form_of(ask, "p")))
    assert again == ask


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
        ({"commands": "x", "time_limit": "soon"}, "90s, 30m"),
        ({"commands": "x", "begin": "someday"}, "someday"),
        ({"commands": "x", "array": "some"}, "array"),
        ({"commands": "x\ny", "array": "1-9000"}, "more than 10000"),
        ({"commands": "x", "only_on": "moon"}, "only_on"),
        ({"commands": "x", "require": "|"}, "kind of GPU"),
        ({"commands": "x", "notify": "ftp://x"}, "http"),
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
