"""What tasks print goes into the log, line by line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from postroom.session.task_output import LONGEST, TaskOutput
from postroom.store.base import create_base
from postroom.store.journal import Journal


def test_lines_are_logged_whole_and_the_rest_at_the_end(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    reader, writer = os.pipe()
    output = TaskOutput(os.fdopen(reader, "rb", buffering=0), Journal(base, "guardian 0"), "0")
    assert not output.read()  # nothing yet, and it does not wait
    os.write(writer, b"one\ntw")
    assert output.read()
    os.write(writer, b"o\n\xff\nrest")
    os.close(writer)
    output.close()
    lines = [json.loads(line) for line in Path(base.log).read_text().splitlines()]
    assert [line["text"] for line in lines] == ["one", "two", "\ufffd", "rest"]
    assert {line["stream"] for line in lines} == {"output"}


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    reader, writer = os.pipe()
    output = TaskOutput(os.fdopen(reader, "rb", buffering=0), Journal(base, "guardian 0"), "0")
    for _ in range(3):
        os.write(writer, b"x" * (LONGEST // 2))
        output.read()
    os.close(writer)
    output.close()
    lines = [json.loads(line) for line in Path(base.log).read_text().splitlines()]
    assert [len(line["text"]) for line in lines] == [LONGEST * 3 // 2]
