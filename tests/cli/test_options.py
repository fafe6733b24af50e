"""The options that verbs share: every verb takes the base the same way."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from postroom.cli.options import at_least, duration
from postroom.cli.verbs import postroom

from .test_help import ALL

JOB = "0b859f/1"
# What each verb needs besides a base.
ARGUMENTS = {
    "agents add": ["cpu"],
    "agents drain": [],
    "agents fill": [],
    "agents list": [],
    "agents remove": ["1"],
    "agents start": ["1"],
    "agents stop": [],
    "clean": [],
    "doctor": [],
    "down": [],
    "drain": [],
    "edit": [JOB, "-p", "1"],
    "hold": [JOB],
    "jobs": [],
    "kill": [JOB],
    "limit": ["project", "1"],
    "logs": [JOB],
    "mcp": [],
    "master": [],
    "move": [JOB, "first"],
    "pause": [],
    "pilots add": ["--local"],
    "pilots drain": [],
    "pilots list": [],
    "pilots remove": ["1"],
    "pilots resume": [],
    "pilots show": ["1"],
    "pilots stop": [],
    "priority": [JOB, "1"],
    "release": [JOB],
    "rerun": [JOB],
    "resume": [],
    "retention": [],
    "show": [JOB],
    "status": [],
    "submit": ["true"],
    "top": [],
    "ui": [],
    "up": [],
    "wait": [JOB],
}
POSITIONAL = [verb for verb in ARGUMENTS if verb.startswith(("agents", "pilots"))] + [
    "doctor",
    "down",
    "master",
    "ui",
    "up",
]


def find(path: tuple[str, ...]) -> click.Command:
    command: click.Command = postroom
    for word in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command


@pytest.fixture(autouse=True)
def _bases_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bases that every verb refuses, naming the folder."""
    for name in ("named", "variable", "postroom/queue"):
        (tmp_path / name).mkdir(mode=0o700, parents=True)
        (tmp_path / name / "FORMAT").write_text("postroom 99\n")
    (tmp_path / "postroom").chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("POSTROOM_BASE", raising=False)


def refused(*words: str) -> str:
    """Call a verb; return the folder of the base that it refused."""
    done = CliRunner().invoke(postroom, words)
    said = f"{done.output} {done.exception}"
    assert done.exit_code != 0 and not isinstance(done.exception, TypeError), said
    found = [name for name in ("named", "variable", "queue") if f"/{name}" in said]
    assert len(found) == 1, said
    return found[0]


def test_the_table_has_every_verb_that_takes_a_base() -> None:
    takes = {
        " ".join(path) for path in ALL if any("--base" in param.opts for param in find(path).params)
    }
    assert takes == set(ARGUMENTS)


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_the_option_beats_the_variable_and_the_variable_beats_the_default(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = verb.split()
    assert refused(*words, *ARGUMENTS[verb]) == "queue"
    monkeypatch.setenv("POSTROOM_BASE", "variable")
    assert refused(*words, *ARGUMENTS[verb]) == "variable"
    for option in (["-b", "named"], ["--base", "named"], ["--base=./named"]):
        assert refused(*words, *option, *ARGUMENTS[verb]) == "named"


@pytest.mark.parametrize("verb", POSITIONAL)
def test_the_base_may_also_be_an_argument(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_BASE", "variable")
    given = ARGUMENTS[verb]
    for folder in ("named", "./named"):
        words = [*given, folder] if verb == "agents start" else [folder, *given]
        assert refused(*verb.split(), *words) == "named"


@pytest.mark.parametrize("verb", ["agents list", "doctor", "down", "master", "ui", "up"])
def test_a_base_that_is_named_twice_is_refused(verb: str) -> None:
    done = CliRunner().invoke(postroom, [*verb.split(), "named", "-b", "base"])
    assert done.exit_code == 2 and "named twice" in done.output


def test_a_bad_duration_names_the_option() -> None:
    for words in (["wait", JOB, "--timeout", "soon"], ["run", "-c", "x", "--timeout", "soon"]):
        done = CliRunner().invoke(postroom, words)
        assert done.exit_code == 2 and "'--timeout'" in done.output
        assert "write 90s, 30m, 2h" in done.output
    done = CliRunner().invoke(postroom, ["run", "-c", "x", "--timeout", "0"])
    assert done.exit_code == 2 and "too short" in done.output


def test_durations_are_seconds() -> None:
    assert (duration("2m"), at_least(1)("1:00")) == (120, 60)
