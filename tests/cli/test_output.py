"""How the verbs print: safely, and as JSON."""

from __future__ import annotations

import json

from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.requests import pending
from tests.queue.kit import FAILURE, FILES, end, queue

from .kit import call


def test_text_of_a_job_cannot_steer_the_terminal(base: Base) -> None:
    queue(base, "echo \x1b[2J\x07")
    for words in (["status"], ["jobs"], ["submit", "--dry-run", "a\x1b[2J"]):
        assert "\x1b" not in call(base, *words).stdout
    assert "\x1b" not in call(base, "show", queue(base, "\x1b[2J")[0].short).stdout


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
