"""What the verbs of the queue print, ask for and refuse; no Master acts here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroom.cli.verbs import postroom
from postroom.errors import PostroomError
from postroom.parcel.sheets import Failure, Outcome
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.requests import RequestVerb, pending, read_request
from tests.queue.kit import FAILURE, FILES, end, make_old, queue


def call(base: Base, *words: str, code: int = 0) -> Result:
    """Call a verb; its exit code is what the function returns, since click does not exit here."""
    done = CliRunner().invoke(
        postroom, words, env={"POSTROOM_BASE": base.root}, standalone_mode=False
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert (done.return_value or 0) == code, done.output
    return done


def asked(base: Base) -> list[tuple[RequestVerb, tuple[JobId, ...], int | str | None]]:
    requests = [read_request(FILES, base, name) for name in pending(FILES, base)]
    return [(request.verb, request.jobs, request.value) for request in requests]


def test_submit_prints_ids_and_nothing_else_on_stdout(base: Base, view: QueueView) -> None:
    done = call(base, "submit", "-n", "one", "--", "echo", "a b")
    (row,) = view.jobs().jobs
    assert done.stdout == f"{row.short}\n"
    assert (row.command, row.name, row.project) == ("echo 'a b'", "one", "default")
    call(base, "submit", "python x.py > log; true")
    assert view.jobs().jobs[1].command == "python x.py > log; true"


def test_submit_passes_on_what_is_wished(base: Base, view: QueueView, tmp_path: Path) -> None:
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
    }
    assert (detail["timeout_s"], detail["retries"], detail["cwd"]) == (5400, 3, str(tmp_path))
    assert detail["env"]["A"] == "1=2"
    assert detail["env"]["PATH"] == os.environ["PATH"]
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


def test_a_dry_run_queues_nothing(base: Base, view: QueueView) -> None:
    done = call(base, "submit", "--array", "1-3", "--dry-run", "make it")
    assert done.stdout.count("make it") == 3
    assert view.jobs().jobs == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["submit"], "name a command"),
        (["submit", "--array", "9-1", "x"], "no array"),
        (["submit", "--array", "1-9:0", "x"], "no array"),
        (["submit", "-t", "soon", "x"], "no time"),
        (["submit", "-m", "lots", "x"], "no amount of memory"),
        (["submit", "-e", "A", "x"], "NAME=VALUE"),
        (["submit", "-C", "/nowhere", "x"], "does not exist"),
        (["submit", "-P", " ", "x"], "a project's name"),
        (["submit", "--after", "abcdef/1", "x"], "there is no run 'abcdef'"),
        (["submit", "--snapshot", "-C", "/nowhere", "x"], "does not exist"),
        (["show", "nothing/1"], "there is no run"),
        (["show", "no job"], "is not a job"),
        (["jobs", "-s", "broken"], "no job is ever 'broken'"),
        (["kill", "zzzzzz"], "there is no run"),
        (["rerun"], "name jobs, or say --failed"),
        (["wait"], "name jobs, or a project"),
        (["pause", "-P", "x"], "there is no project 'x'"),
        (["drain", "7"], "there is no agent 7"),
        (["priority", "abcdef/1"], "Missing parameter"),
        (["move", "abcdef/1", "before"], "move JOB before OTHER"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    base: Base, view: QueueView, words: list[str], error: str
) -> None:
    with pytest.raises(Exception, match=error) as caught:
        call(base, *words)
    assert isinstance(caught.value, PostroomError) or hasattr(caught.value, "format_message")
    assert view.jobs().jobs == []


def test_a_base_that_is_not_there_is_made_by_submit_only(tmp_path: Path) -> None:
    missing = Base(tmp_path / "new")
    with pytest.raises(PostroomError, match="there is no queue at"):
        call(missing, "status")
    call(missing, "submit", "--dry-run", "--snapshot", "true")
    with pytest.raises(PostroomError, match="does not exist"):
        call(missing, "submit", "-C", "/nowhere", "true")
    assert not (tmp_path / "new").exists()
    assert call(missing, "submit", "true").stderr.startswith("made a new queue")
    assert "1 queued" in call(missing, "status").stdout


def test_status_says_first_what_is_wrong(base: Base) -> None:
    queue(base, "a")
    shown = call(base, "status").stdout
    assert "NO MASTER ACTS" in shown and f"postroom master {base.root} --detach" in shown
    assert json.loads(call(base, "status", "--json").stdout)["counts"] == {"queued": 1}


def test_jobs_are_listed_filtered_and_paged(base: Base) -> None:
    first, *_ = queue(base, *[f"job{n}" for n in range(5)])
    end(base, first, FAILURE)
    shown = call(base, "jobs", "-n", "2")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == [
        JobId(first.run, n).short for n in (1, 2)
    ]
    assert "1 to 2 of 5; more: --first 2" in shown.stderr
    assert "exit code 3" in call(base, "jobs", "-s", "failed").stdout
    assert "exit code 3" in call(base, "jobs", "-s", "unsuccessful").stdout
    pages = json.loads(call(base, "jobs", "-s", "pending", "--json").stdout)
    assert (pages["total"], pages["more"]) == (4, False)
    assert "job4" in call(base, "jobs", "JOB4").stdout
    assert call(base, "jobs", "nothing").stdout == ""


def test_show_tells_why_a_job_waits_and_why_it_failed(base: Base) -> None:
    first, second = queue(base, "a", "b")
    (third,) = queue(base, "c", after=(first,))
    assert "no Master acts" in call(base, "show", second.short).stdout
    assert f"it waits for {first.short} (queued)" in call(base, "show", third.short).stdout
    end(base, first, FAILURE)
    shown = call(base, "show", first.short).stdout
    assert "exit code 3: no such data" in shown and "Traceback: ..." in shown
    assert "is about to be cancelled" in call(base, "show", third.short).stdout


def test_text_of_a_job_cannot_steer_the_terminal(base: Base) -> None:
    queue(base, "echo \x1b[2J\x07")
    for words in (["status"], ["jobs"], ["submit", "--dry-run", "a\x1b[2J"]):
        assert "\x1b" not in call(base, *words).stdout
    assert "\x1b" not in call(base, "show", queue(base, "\x1b[2J")[0].short).stdout


def test_requests_are_written_for_the_master(base: Base) -> None:
    first, second, third = queue(base, "a", "b", "c")
    done = call(base, "kill", first.short)
    assert "no Master acts, so it waits until one stands" in done.stderr
    call(base, "hold", f"{second.run[-6:]}/1-2")
    call(base, "release", second.short)
    call(base, "priority", third.short, "-5")
    call(base, "move", third.short, "before", first.short)
    call(base, "move", third.short, "first")
    call(base, "pause", "--preempt")
    call(base, "resume", "-P", "p")
    call(base, "kill", first.run)
    assert asked(base) == [
        (RequestVerb.KILL, (first,), None),
        (RequestVerb.HOLD, (second, third), None),
        (RequestVerb.RELEASE, (second,), None),
        (RequestVerb.PRIORITY, (third,), -5),
        (RequestVerb.MOVE, (third,), str(first)),
        (RequestVerb.MOVE, (third,), "first"),
        (RequestVerb.PAUSE, (), None),
        (RequestVerb.RESUME, (), None),
        (RequestVerb.KILL, (first, second, third), None),
    ]
    pause = read_request(FILES, base, pending(FILES, base)[6])
    assert pause.everything and pause.preempt


def test_every_verb_speaks_json_too(base: Base, view: QueueView) -> None:
    (job,) = json.loads(call(base, "submit", "--json", "true").stdout)
    short = JobId.parse(job).short
    (shown,) = json.loads(call(base, "submit", "--json", "--dry-run", "x y").stdout)
    assert shown["command"] == "x y"
    for words in (
        ["kill", short],
        ["hold", short],
        ["release", short],
        ["priority", short, "1"],
        ["move", short, "last"],
        ["pause"],
        ["resume"],
        ["drain"],
        ["drain", "--undo"],
    ):
        answer = json.loads(call(base, *words, "--json").stdout)
        assert (answer["settled"], answer["request"] in pending(FILES, base)) == (False, True)
    end(base, JobId.parse(job), FAILURE)
    said = json.loads(call(base, "wait", "--json", short, code=1).stdout)
    assert said == {"job": job, "state": "failed"}
    again = json.loads(call(base, "rerun", "--failed", "--json").stdout)
    assert again["jobs"] == [view.jobs(state="queued").jobs[0].id]
    assert json.loads(call(base, "clean", "--json", "--dry-run").stdout)["runs"] == []


def test_nothing_is_asked_about_what_is_over(base: Base) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    assert "nothing to kill" in call(base, "kill", job.short).stderr
    with pytest.raises(PostroomError, match="nothing to hold"):
        call(base, "hold", job.short)
    assert asked(base) == []


def test_a_rerun_is_the_same_job_again(base: Base, view: QueueView) -> None:
    short = call(base, "submit", "-n", "x", "-t", "60", "--retries", "2", "-p", "3", "a b").stdout
    (row,) = view.jobs().jobs
    end(base, JobId(row.run, row.number), FAILURE)
    again = call(base, "rerun", short.strip()).stdout.strip()
    detail = json.loads(call(base, "show", again, "--json").stdout)
    assert detail["job"]["rerun_of"] == row.id
    assert (detail["job"]["command"], detail["job"]["name"], detail["job"]["priority"]) == (
        "a b",
        "x",
        3,
    )
    assert (detail["timeout_s"], detail["retries"]) == (60, 2)


def test_what_failed_is_rerun_once_with_all_that_waited_for_it(base: Base, view: QueueView) -> None:
    good, bad = queue(base, "good", "bad")
    (then,) = queue(base, "then", after=(bad,))
    (last,) = queue(base, "last", after=(then,))
    (other,) = queue(base, "other", project="q")
    end(base, good)
    end(base, bad, FAILURE)
    in_vain = Failure(Outcome.CANCELLED, "cancelled", "")
    end(base, then, in_vain)
    end(base, last, in_vain)
    end(base, other, in_vain)  # somebody has killed it: that is no failure
    assert call(base, "rerun", "--failed", "--dry-run").stdout.split() == [
        job.short for job in (bad, then, last)
    ]
    new = call(base, "rerun", "--failed").stdout.split()
    states = {row.short: row.state for row in view.jobs(state="queued,waiting").jobs}
    assert states == {new[0]: "queued", new[1]: "waiting", new[2]: "waiting"}
    links = view.job(JobId(bad.run, int(new[2].split("/")[1]))).after
    assert [one.short for one in links] == [new[1]]
    assert call(base, "rerun", "--failed").stdout == ""


def test_wait_returns_how_it_went(base: Base) -> None:
    good, bad, never = queue(base, "good", "bad", "never")
    end(base, good)
    end(base, bad, FAILURE)
    assert call(base, "wait", good.short).stdout == f"{good.short} ok\n"
    assert "failed" in call(base, "wait", good.short, bad.short, code=1).stdout
    assert never.short in call(base, "wait", never.short, "--timeout", "0", code=124).stderr
    call(base, "wait", "-P", "p", "--timeout", "0", code=124)


def test_logs_of_a_job_are_printed_from_any_line_on(base: Base) -> None:
    (job,) = queue(base, "a")
    assert "is queued: no Master acts" in call(base, "logs", job.short).stderr
    folder = Path(base.job_folder(job.run, job.number))
    folder.mkdir(parents=True)
    (folder / f"{job.number}.OUT").write_text("".join(f"line {n}\n" for n in range(50_000)))
    (folder / f"{job.number}.ERR").write_text("no newline")
    end(base, job)
    assert call(base, "logs", job.short).stdout.count("\n") == 50_000
    assert call(base, "logs", job.short, "-n", "2").stdout == "line 49998\nline 49999\n"
    assert call(base, "logs", job.short, "-n", "20000").stdout.startswith("line 30000\n")
    assert call(base, "logs", job.short, "-n", "0").stdout == ""
    assert call(base, "logs", job.short, "--err", "-n", "1").stdout == "no newline"
    assert call(base, "logs", job.short, "-f", "-n", "1").stdout == "line 49999\n"


def test_clean_removes_what_is_long_over_and_nothing_else(base: Base, view: QueueView) -> None:
    (old,) = queue(base, "old", project="old")
    (new,) = queue(base, "new", project="new")
    done, _ = queue(base, "done", "not done", project="half")
    for job in (old, new, done):
        end(base, job)
    folder = Path(base.job_folder(old.run, old.number))
    folder.mkdir(parents=True)
    for run in (old.run, done.run):
        make_old(base, run)
    assert call(base, "clean", "--dry-run").stdout.split() == [old.run]
    assert folder.exists()
    assert call(base, "clean").stdout.split() == [old.run]
    assert not folder.exists() and os.listdir(base.trash) == []
    assert {one.name for one in view.projects()} == {"new", "half"}
    assert call(base, "clean", "--older-than", "0").stdout == ""  # it changed just now
