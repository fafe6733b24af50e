"""Forms become the same requests as the commands of the command line."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx
import pytest

from postroom.commands.job_environment import JobEnvironment
from postroom.commands.spec import CommandSpec
from postroom.parcel.sheets import JobSheet
from postroom.queue.queue_view import QueueView
from postroom.queue.submission import submit
from postroom.session.sessions import Sessions
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.store.pilot_records import PilotGroup, PilotGroups, change_groups, read_groups
from postroom.store.requests import Request, RequestVerb, pending, read_request
from postroom.store.scheduling import SchedulingOptions
from tests.queue.kit import end

from .conftest import SCRIPT, Page

FILES = LocalFiles()


def post(page: Page, browser: httpx.Client, path: str, **fields: Any) -> tuple[httpx.Response, str]:
    """Send a form; return the answer, and what the page behind it says."""
    answer = browser.post(path, data={"form_key": page.token.form_key, **fields})
    if answer.status_code != 303:
        return answer, answer.text
    shown = browser.get(answer.headers["location"]).text
    note = re.search(r'<p class="note answer \w+" role="status">(.*?)</p>', shown)
    return answer, note[1] if note else ""


def asked(page: Page, known: list[str]) -> list[Request]:
    new = [name for name in pending(FILES, page.base) if name not in known]
    return [read_request(FILES, page.base, name) for name in new]


@pytest.mark.parametrize(
    ("fields", "verb", "value"),
    [
        ({"verb": "kill"}, "kill", None),
        ({"verb": "hold"}, "hold", None),
        ({"verb": "release"}, "release", None),
        ({"verb": "priority", "value": "-7"}, "priority", -7),
        ({"verb": "move first"}, "move", "first"),
        ({"verb": "move last"}, "move", "last"),
    ],
)
def test_each_button_writes_its_request(
    page: Page, browser: httpx.Client, fields: dict[str, str], verb: str, value: object
) -> None:
    known = pending(FILES, page.base)
    jobs = [str(job) for job in page.jobs[:2]]
    answer, note = post(page, browser, "/act", job=jobs, back="/jobs", **fields)
    assert answer.headers["location"].startswith("/jobs?note=")
    assert "no scheduler is running" in note
    (request,) = asked(page, known)
    assert (request.verb.value, request.value) == (verb, value)
    assert request.jobs == tuple(page.jobs[:2])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"verb": "kill"}, "No job is selected"),
        ({"verb": "explode", "job": "x/1"}, "explode"),
        ({"verb": "kill", "job": "../../etc/passwd"}, "not a job"),
        ({"verb": "kill", "job": "nowhere/1"}, "no job"),
        ({"verb": "priority", "job": "HERE"}, "whole number"),
        ({"verb": "priority", "job": "HERE", "value": "high"}, "whole number"),
        ({"verb": "priority", "job": "HERE", "value": "9999999"}, "between"),
    ],
)
def test_what_makes_no_sense_is_said_on_the_page_and_asks_for_nothing(
    page: Page, browser: httpx.Client, fields: dict[str, str], words: str
) -> None:
    before = page.listing()
    fields = {k: str(page.jobs[0]) if v == "HERE" else v for k, v in fields.items()}
    _, note = post(page, browser, "/act", **fields)
    assert words in note
    assert page.listing() == before


def test_the_queue_a_project_and_agents(page: Page, browser: httpx.Client) -> None:
    known = pending(FILES, page.base)
    post(page, browser, "/act", verb="pause", preempt="on")
    post(page, browser, "/act", verb="resume", project=SCRIPT)
    post(page, browser, "/act", verb="pause", run=page.jobs[0].run)
    post(page, browser, "/act", verb="add", value="0,cpu")
    post(page, browser, "/act", verb="limit", project=SCRIPT, value="2")
    post(page, browser, "/act", verb="limit", project=SCRIPT, value="")
    requests = asked(page, known)
    verbs = [request.verb.value for request in requests]
    assert verbs == ["pause", "resume", "pause", "add", "limit", "limit"]
    assert [(one.projects, one.value) for one in requests[4:]] == [((SCRIPT,), 2), ((SCRIPT,), 0)]
    assert (requests[0].everything, requests[0].preempt) == (True, True)
    assert requests[1].projects == (SCRIPT,)
    assert requests[2].runs == (page.jobs[0].run,)
    assert requests[3].value == "0;cpu;"
    for fields in (
        {"verb": "drain", "agent": "9"},
        {"verb": "add", "value": "0;rm -rf /"},
        {"verb": "add", "value": "9-1"},
        {"verb": "limit", "value": "2"},
        {"verb": "limit", "project": SCRIPT, "value": "-1"},
    ):
        _, note = post(page, browser, "/act", **fields)
        assert note
    assert len(asked(page, known)) == 6


def test_buttons_of_pilots_do_what_the_verbs_of_the_command_line_do(
    page: Page, browser: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(Sessions, "keep_pilots", lambda self: kept.append(self.base.root))

    def add(groups: PilotGroups) -> None:
        groups.groups["lab"] = PilotGroup("local", 1, 0, 1, None, 60.0, 0)

    def lab() -> PilotGroup:
        return read_groups(FILES, page.base).groups["lab"]

    change_groups(FILES, page.base, add)
    _, note = post(page, browser, "/pilots", verb="stop", group="lab")
    assert (note, lab().drained, lab().stopped) == ("Lab: stopped.", True, True)
    assert ">Resume<" in browser.get("/agents").text
    post(page, browser, "/pilots", verb="resume", group="lab")
    assert (lab().drained, lab().stopped) == (False, False)
    post(page, browser, "/pilots", verb="drain", group="lab")
    assert (lab().drained, lab().stopped) == (True, False)
    for wrong in ({"verb": "explode", "group": "lab"}, {"verb": "stop", "group": "nobody"}):
        _, note = post(page, browser, "/pilots", **wrong)
        assert wrong["verb"] in note or wrong["group"] in note
    asked_for = {"verb": "remove", "groups": ["lab"]}
    answer = httpx.post(
        page.address + "/api/requests/pilots", json=asked_for, headers=page.bearer, timeout=60
    )
    assert answer.json()["done"] and "lab" not in read_groups(FILES, page.base).groups
    assert kept == [page.base.root] * 4


@pytest.mark.parametrize(
    ("gpus", "words"), [("97,x", "'x' names no GPU"), ("97,0", "No card is called '97'")]
)
def test_an_agent_for_what_is_no_gpu_is_refused(
    page: Page, browser: httpx.Client, gpus: str, words: str
) -> None:
    known = pending(FILES, page.base)
    _, note = post(page, browser, "/act", verb="add", value=gpus)
    assert words in html.unescape(note)
    assert asked(page, known) == []


def test_a_bulk_action_leads_back_to_the_same_filtered_page(
    page: Page, browser: httpx.Client
) -> None:
    asks = [CommandSpec(f"echo a&b {number}", cwd="/") for number in range(60)]
    jobs = submit(FILES, page.base, asks, project="a & b/ü")
    filtered = "/jobs?state=queued&project=a%20%26%20b/%C3%BC&first=50"
    shown = browser.get(filtered).text
    back = html.unescape(re.findall(r'name="back" value="([^"]*)"', shown)[0])
    assert back == filtered
    for verb in ("hold", "rerun"):  # a single new job does not lead away from the list, either
        answer, note = post(page, browser, "/act", verb=verb, job=str(jobs[-1]), back=back)
        assert jobs[-1].run[-6:] in note
        assert answer.headers["location"].startswith(f"{filtered}&note=")


def test_an_action_on_all_that_match_reaches_other_pages_too(
    page: Page, browser: httpx.Client
) -> None:
    known = pending(FILES, page.base)
    asks = [CommandSpec(f"echo {n % 2}", name=f"{n % 2}", cwd="/") for n in range(140)]
    jobs = submit(FILES, page.base, asks, project="every & each")
    shown = browser.get("/jobs?project=every%20%26%20each&state=queued&text=echo%201").text
    every = html.unescape(re.findall(r'name="every" id="every" value="([^"]*)"', shown)[0])
    post(page, browser, "/act", verb="hold", every=every, job=str(jobs[0]))
    (request,) = asked(page, known)
    assert set(request.jobs) == set(jobs[1::2])


def test_a_job_is_edited_and_run_again_with_the_environment_that_it_had(
    page: Page, browser: httpx.Client
) -> None:
    environment = JobEnvironment({"SHELL_OF": "that day"}, 0o22)
    spec = CommandSpec("echo 1\necho 2", name="old", cwd="/", env={"A": "1"})
    (job,) = submit(FILES, page.base, [spec], project="edited", environment=environment)
    shown = browser.get(f"/submit?again={job}").text
    fields = {
        "commands": html.unescape(re.findall(r"<textarea[^>]*>(.*?)</textarea>", shown, re.S)[0]),
        **dict.fromkeys(re.findall(r'type="checkbox" name="(\w+)" checked', shown), "on"),
        **dict(re.findall(r'name="(again|name|project|cwd)" value="([^"]*)"', shown)),
    }
    assert (fields["commands"], fields["again"], fields["whole"]) == (spec.command, str(job), "on")
    changed = {**fields, "name": "new", "env": "A=2"}
    answer, _ = post(page, browser, "/submit", action="queue", **changed)
    with QueueView(page.base) as view:
        new, asked_for, project = view.command(
            JobId.parse(answer.headers["location"].split("?")[0].removeprefix("/jobs/"))
        )
        assert view.environment(new) == {"SHELL_OF": "that day", "A": "2"}
    assert (asked_for.name, asked_for.rerun_of, project) == ("new", job, "edited")
    assert browser.get("/submit?again=nonsense").status_code == 400


def test_a_waiting_job_is_edited_by_the_request_of_postroom_edit(
    page: Page, browser: httpx.Client
) -> None:
    first, second = submit(
        FILES,
        page.base,
        [
            CommandSpec("echo 1", cwd="/", env={"A": "1"}, before="module load x"),
            CommandSpec("echo 2", cwd="/", scheduling=SchedulingOptions(priority=1)),
        ],
        project="waits",
    )
    shown = browser.get(f"/submit?edit={first}").text
    assert "echo 1</textarea>" in shown and "A=1</textarea>" in shown and "Array" not in shown
    known = list(pending(FILES, page.base))
    fields = {
        "edit": str(first),
        "whole": "on",
        "project": "waits",
        "cwd": "/tmp",
        "action": "queue",
    }
    changed = {"commands": "echo 3\necho 4", "env": "A=2", "after": str(second), "priority": "5"}
    answer, note = post(page, browser, "/submit", **fields, **changed, time_limit="1h")
    assert answer.headers["location"].startswith(f"/jobs/{first}?note=")
    assert note.startswith(f"Job {first.short} changed")
    (request,) = asked(page, known)
    assert request.verb is RequestVerb.EDIT
    (parcel,) = request.parcels().values()
    new = CommandSpec.of_job(JobSheet("parcel", parcel), first.number)
    assert (new.command, new.cwd, new.env) == ("echo 3\necho 4", "/tmp", {"A": "2"})
    assert (new.before, new.timeout_s) == ("module load x", 3600.0)
    assert (new.scheduling.after, new.scheduling.priority) == ((second,), 5)
    wrong, said = post(page, browser, "/submit", **fields, commands="true", begin="someday")
    assert wrong.status_code == 400 and "is not a time" in said and "Save" in said


def test_a_job_that_has_ended_cannot_be_edited(page: Page, browser: httpx.Client) -> None:
    (job,) = submit(FILES, page.base, [CommandSpec("true", cwd="/")], project="ended")
    assert f"/submit?edit={job}" in browser.get(f"/jobs/{job}").text.replace("%2F", "/")
    end(page.base, job)
    assert "nothing to edit" in browser.get(f"/submit?edit={job}").text
    assert "/submit?edit=" not in browser.get(f"/jobs/{job}").text


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example", "/\\evil", "/jobs?x\r\nSet-Cookie: a=b"]
)
def test_a_form_leads_back_to_this_page_only(page: Page, browser: httpx.Client, back: str) -> None:
    answer, _ = post(page, browser, "/act", verb="kill", back=back)
    assert answer.headers["location"].startswith("/jobs?note=")


def test_a_dry_run_queues_nothing_and_a_run_queues_what_it_showed(
    page: Page, browser: httpx.Client
) -> None:
    before = page.listing()
    fields = {"template": "echo {n} " + SCRIPT, "values": "n=1:3", "project": "swept"}
    dry, shown = post(page, browser, "/sweep", action="dry", **fields)
    assert dry.status_code == 200
    assert "3 jobs would be queued in project swept" in shown
    assert SCRIPT not in shown
    assert page.listing() == before
    wrong, shown = post(page, browser, "/sweep", action="queue", **{**fields, "values": "n=3:1"})
    assert wrong.status_code == 400
    assert "has no end" in shown
    assert page.listing() == before
    _, note = post(page, browser, "/sweep", action="queue", **fields)
    assert note.startswith("Queued 3 jobs")
    jobs = QueueView(page.base).jobs(project="swept").jobs
    assert [job.command for job in jobs] == [f"echo {n} {SCRIPT}" for n in (1, 2, 3)]


def test_one_job_alone_leads_to_its_page(page: Page, browser: httpx.Client) -> None:
    answer, note = post(page, browser, "/submit", action="queue", commands="true", project="one")
    (job,) = QueueView(page.base).jobs(project="one").jobs
    assert answer.headers["location"].startswith(f"/jobs/{job.id}?note=")
    assert note == f"Queued as {job.short}."
    again, _ = post(page, browser, "/act", verb="rerun", job=job.id, back=f"/jobs/{job.id}")
    found = {one.id: one for one in QueueView(page.base).jobs(project="one").jobs}
    assert len(found) == 2
    new = next(one for one in found.values() if one.rerun_of == job.id)
    assert again.headers["location"].startswith(f"/jobs/{new.id}?note=")
