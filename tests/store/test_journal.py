from __future__ import annotations

import json
import os
from pathlib import Path

from postroom.store.base import create_base
from postroom.store.journal import Journal
from tests.by_hand import Clock


def read(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_every_line_is_json_and_signed(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    journal = Journal(base, "worker 0")
    journal.log("info", "two\nlines \x1b[31m and \u2028 more", job=3)
    journal.event("sent", run="r")
    (line,) = read(base.log)
    assert line["role"] == "worker 0" and line["pid"] == os.getpid() and line["job"] == 3
    assert "\x1b" not in Path(base.log).read_text()
    assert read(base.events)[0]["event"] == "sent"


def test_a_log_that_cannot_be_written_stops_nothing_and_is_counted(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    journal = Journal(base, "master")
    os.mkdir(base.log)
    journal.log("info", "lost")
    journal.log("info", "lost too")
    os.rmdir(base.log)
    journal.log("info", "written")
    (line,) = read(base.log)
    assert line["dropped_before"] == 2


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    (tmp_path / "victim").write_text("precious\n")
    os.symlink(tmp_path / "victim", base.log)
    Journal(base, "master").log("info", "x")
    assert (tmp_path / "victim").read_text() == "precious\n"


def test_what_may_wait_keeps_its_place_and_time_and_is_not_forgotten(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    clock = Clock()
    journal = Journal(base, "master", clock=clock)
    journal.event_soon("done", first=1)
    assert not os.path.exists(base.events)
    clock.now += 5
    journal.event("sent", first=2)
    first, second = read(base.events)
    assert (first["event"], first["first"], second["event"]) == ("done", 1, "sent")
    assert second["at"] - first["at"] == 5  # type: ignore[operator]
    journal.event_soon("done", first=3)
    del journal
    assert [line["first"] for line in read(base.events)] == [1, 2, 3]
