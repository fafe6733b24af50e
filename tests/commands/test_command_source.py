"""Where lines come from, and what makes two of them the same job."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.commands.command_source import (
    CommandSourceError,
    Feed,
    line_from,
    read_lines,
    read_yielder,
)
from postroom.commands.spec import CommandSpec
from postroom.testing import wait_until


def drain(feed: Feed) -> list[CommandSpec]:
    found: list[CommandSpec] = []

    def ended() -> bool:
        while (line := feed.take()) is not None:
            found.append(line)
        return feed.ended

    wait_until(ended, what="the end of the feed")
    return found


def commands(feed: Feed) -> list[str]:
    return [line.command for line in drain(feed)]


def test_blank_lines_and_comments_are_no_commands() -> None:
    text = "a && b\n\n  # c\n   d | e  \n#\n"
    assert [line.command for line in read_lines(io.StringIO(text))] == ["a && b", "d | e"]


def test_a_zero_byte_is_refused_with_the_number_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    path.write_bytes(b"echo a\n\necho \0\n")
    with (
        open(path, encoding="utf-8") as file,
        pytest.raises(CommandSourceError, match=f"line 3 of {path} holds a zero byte"),
    ):
        list(read_lines(file))
    with pytest.raises(CommandSourceError, match=r"^line 1 holds a zero byte"):
        list(read_lines(io.StringIO("\0")))


def test_a_pipe_is_read_while_it_is_open() -> None:
    reader, writer = os.pipe()
    with open(reader) as file, open(writer, "w", buffering=1) as pen:
        feed = Feed(read_lines(file))
        pen.write("first\n")
        assert wait_until(feed.take).command == "first"
        assert not feed.ended
        pen.write("second\n")
        assert wait_until(feed.take).command == "second"
        pen.close()
        assert drain(feed) == []


def test_a_yielder_is_asked_for_little_more_than_is_taken() -> None:
    asked: list[int] = []

    def lines() -> Iterator[CommandSpec]:
        for number in range(1000):
            asked.append(number)
            yield CommandSpec(str(number))

    feed = Feed(lines(), ahead=2)
    for _ in range(5):
        wait_until(feed.take)
    assert len(asked) <= 5 + 2 + 1 + 1
    wait_until(lambda: feed.take() is None and feed.ended)  # its thread ends


def test_a_slow_yielder_loses_nothing() -> None:
    go = threading.Semaphore(0)

    def lines() -> Iterator[CommandSpec]:
        for number in range(3):
            go.acquire()
            yield CommandSpec(str(number))

    feed = Feed(lines())
    for number in range(3):
        assert feed.take() is None
        assert not feed.ended
        go.release()
        assert wait_until(feed.take).command == str(number)
    assert drain(feed) == []
    assert feed.error == ""


def test_an_exception_in_a_yielder_ends_the_feeding_with_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "jobs.py"
    path.write_text("def yielder():\n    yield 'fed'\n    raise RuntimeError('no more')\n")
    feed = Feed(read_yielder(str(path)))
    assert commands(feed) == ["fed"]
    assert "RuntimeError: no more" in feed.error
    assert "jobs.py" in feed.error
    assert "feed.py" not in feed.error, "our own part is of no interest"


def test_a_yielder_imports_what_stands_beside_it_and_yields_dicts(tmp_path: Path) -> None:
    (tmp_path / "beside_the_yielder.py").write_text("NAME = 'x'\n")
    path = tmp_path / "jobs.py"
    path.write_text(
        "from beside_the_yielder import NAME\n"
        "def yielder():\n"
        "    yield dict(command='c', name=NAME, cwd='/', env={'A': 1}, timeout=5, retries=2)\n"
    )
    (line,) = drain(Feed(read_yielder(str(path))))
    assert line == CommandSpec("c", "x", "/", {"A": "1"}, timeout_s=5, retries=2)


@pytest.mark.parametrize("value", [3, {"name": "x"}, {"command": "c", "gpu": 1}])
def test_what_is_no_line_is_refused_with_its_value(value: object) -> None:
    with pytest.raises(CommandSourceError, match="a line"):
        line_from(value)


def test_a_file_without_a_yielder_says_so(tmp_path: Path) -> None:
    path = tmp_path / "jobs.py"
    path.write_text("x = 1\n")
    feed = Feed(read_yielder(str(path)))
    assert drain(feed) == []
    assert "defines no function yielder()" in feed.error


def test_a_job_is_known_by_command_folder_and_environment() -> None:
    keys = {
        CommandSpec("a").key,
        CommandSpec("b").key,
        CommandSpec("a", cwd="/").key,
        CommandSpec("a", env={"A": "1"}).key,
        CommandSpec("a", repeat=1).key,
    }
    assert len(keys) == 5
    assert CommandSpec("a", name="x", timeout_s=3, retries=4).key == CommandSpec("a").key


def test_the_same_line_twice_is_two_jobs() -> None:
    lines = drain(
        Feed([CommandSpec("true"), CommandSpec("true"), CommandSpec("false"), CommandSpec("true")])
    )
    assert [line.repeat for line in lines] == [0, 1, 0, 2]
    assert len({line.key for line in lines}) == 4
