"""`postroom submit`: what it queues, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from postroom.errors import PostroomError
from postroom.queue.job_words import job_named
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.requests import RequestVerb

from .kit import asked, call


def test_submit_prints_ids_and_nothing_else_on_stdout(base: Base, view: QueueView) -> None:
    done = call(base, "submit", "-n", "one", "--", "echo", "a b")
    (row,) = view.jobs().jobs
    assert done.stdout == f"{row.short}\n"
    assert (row.command, row.name, row.project) == ("echo 'a b'", "one", "default")
    call(base, "submit", "python x.py > log; true")
    assert view.jobs().jobs[1].command == "python x.py > log; true"


def test_options_end_at_the_first_word_of_the_command(base: Base, view: QueueView) -> None:
    call(base, "submit", "-n", "one", "python", "x.py", "--lr", "1", "-n", "2")
    (row,) = view.jobs().jobs
    assert (row.name, row.command) == ("one", "python x.py --lr 1 -n 2")
    with pytest.raises(click.UsageError, match="write options before the command"):
        call(base, "submit", "python x.py", "--priority", "5")


def test_submit_passes_on_every_option(base: Base, view: QueueView, tmp_path: Path) -> None:
    first = call(base, "submit", "true").stdout.strip()
    words = "submit -P vae -p 5 -g 2 -m 40G -t 1:30:00 --retries 3 -e A=1=2 --hold --grace 2m"
    short = call(base, *words.split(), "--after", first, "-C", str(tmp_path), "x").stdout.strip()
    detail = json.loads(call(base, "show", short, "--json").stdout)
    assert detail["scheduling"] == {
        "priority": 5,
        "held": True,
        "after": [detail["after"][0]["id"]],
        "gpus": 2,
        "memory_mib": 40 * 1024,
        "lasts_s": 5520,
    }
    assert (detail["timeout_s"], detail["retries"], detail["cwd"]) == (5400, 3, str(tmp_path))
    assert detail["env"] == ["A"]
    assert detail["job"]["state"] == "held"


def test_an_array_is_numbered_and_a_file_is_read(
    base: Base, view: QueueView, tmp_path: Path
) -> None:
    call(base, "submit", "-n", "a", "--array", "2-9:3", "x $SGE_TASK_ID")
    assert [row.name for row in view.jobs().jobs] == ["a.2", "a.5", "a.8"]
    lines = tmp_path / "lines.txt"
    lines.write_text("# none\nfirst\n\nsecond\n")
    call(base, "submit", "-P", "f", "-f", str(lines))
    assert [row.command for row in view.jobs(project="f").jobs] == ["first", "second"]


def test_a_file_that_is_no_text_is_refused_with_its_line(base: Base, view: QueueView) -> None:
    with pytest.raises(PostroomError, match="line 1 of /bin/sh holds a zero byte"):
        call(base, "submit", "-f", "/bin/sh")
    assert view.jobs().jobs == []


def test_a_dry_run_queues_nothing(base: Base, view: QueueView) -> None:
    done = call(base, "submit", "--array", "1-3", "--dry-run", "make it")
    assert done.stdout.count("make it") == 3
    assert view.jobs().jobs == []


def test_everybody_who_is_to_be_notified_is(base: Base) -> None:
    call(base, "submit", "--notify", "echo a", "--notify", "echo b", "true")
    targets = [json.loads(path.read_bytes())["target"] for path in notices(base)]
    assert sorted(targets) == ["echo a", "echo b"]


def notices(base: Base) -> list[Path]:
    return list(Path(base.control).glob("notice.*.json"))


def test_limits_times_and_kinds_of_cards_are_passed_on(base: Base, view: QueueView) -> None:
    words = "submit --array 1-4%2 --begin now+2h --stop-after-failures 3 --require A100|24G -t 1h x"
    ids = call(base, *words.split()).stdout.split()
    found = [view.job(job_named(view, one)).scheduling for one in ids]
    assert len({one["group"] for one in found}) == 1
    assert {one["group_limit"] for one in found} == {2}
    assert (found[0]["group_failures"], found[0]["require"]) == (3, "A100|24G")
    assert found[0]["lasts_s"] == 3610.0
    assert "it begins at" in view.job(job_named(view, ids[0])).job.reason
    call(base, "submit", "--limit", "1", "y")
    assert view.job(job_named(view, "@")).scheduling["group"] == "project"
    for wrong in ("1-4%0", "1-4%x"):
        with pytest.raises(click.BadParameter, match="at most 4 at once"):
            call(base, "submit", "--array", wrong, "x")


def test_a_project_is_limited(base: Base) -> None:
    call(base, "limit", "vae", "2")
    assert asked(base)[0][::2] == (RequestVerb.LIMIT, 2)
