"""The API, fuzzed from its own description: no internal error, no change without the token."""

from __future__ import annotations

import json
import string
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.queue.actions import verbs_for
from postroom.store.files import LocalFiles
from postroom.store.requests import pending, read_request

from .conftest import Page

FILES = LocalFiles()
TEXTS = st.text(max_size=30) | st.sampled_from(
    ["", "..", "/", "\0", "\r\n", "<script>", "%2e%2e", "9" * 400, "💥", "\ud7ff", "nan", "-1"]
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    TEXTS,
    st.lists(st.integers(), max_size=2),
    st.dictionaries(TEXTS, st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def description(page: Page) -> dict[str, Any]:
    answer = httpx.get(page.address + "/api/openapi.json", headers=page.bearer)
    found = answer.json()
    assert isinstance(found, dict)
    return found


def values(
    schema: dict[str, Any], whole: dict[str, Any], known: list[str]
) -> st.SearchStrategy[Any]:
    """Values that a schema describes, or nearly: one in a few is of another kind altogether."""
    if "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return st.one_of([values(one, whole, known) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | ODD
    if "const" in schema:
        return st.just(schema["const"])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        needed = set(schema.get("required", ()))
        rest = sorted(set(schema["properties"]) - needed)
        # A few of them at once: with all, hardly anything would make sense.
        some = st.lists(st.sampled_from(rest), max_size=2) if rest else st.just([])
        return some.flatmap(
            lambda chosen: st.fixed_dictionaries(
                {
                    name: values(schema["properties"][name], whole, known)
                    for name in sorted(needed.union(chosen))
                }
            )
        )
    if kind == "object":
        return st.dictionaries(TEXTS, TEXTS, max_size=3)
    if kind == "array":
        return st.lists(values(schema.get("items", {}), whole, known), max_size=3)
    if kind == "integer":
        bounds = schema.get("minimum", -(10**6)), schema.get("maximum", 10**6)
        edges = st.sampled_from([bounds[0], bounds[0] - 1, bounds[1], bounds[1] + 1])
        return st.integers(*bounds) | edges | ODD
    if kind == "number":
        return st.floats(allow_nan=False, allow_infinity=False) | ODD
    if kind == "boolean":
        return st.booleans() | ODD
    if kind == "string":
        near = st.sampled_from([*known, "echo 1", "a=1,2", "t {a}", "a<2", "/", "/tmp"])
        plain = st.text(string.ascii_letters + string.digits + "-_/.:=, {}", max_size=20)
        return near | plain | TEXTS
    return ODD


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@st.composite
def requests(draw: st.DrawFn, description: dict[str, Any], known: list[str]) -> dict[str, Any]:
    path, methods = draw(st.sampled_from(sorted(description["paths"].items())))
    method, operation = draw(st.sampled_from(sorted(methods.items())))
    query = {}
    for parameter in operation.get("parameters", ()):
        value = as_text(draw(values(parameter["schema"], description, known)))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(value, safe=""))
        elif parameter.get("required") or draw(st.booleans()):
            query[parameter["name"]] = value
    made: dict[str, Any] = {"method": method.upper(), "path": path}
    if query:
        made["path"] += "?" + urlencode(query, errors="replace")
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = draw(values(schema, description, known))
        raw = json.dumps(body)
        if draw(st.integers(0, 9)) == 0:
            raw = draw(st.sampled_from(["", "{", "[]", "null", '"x"', "\ud7ff"]))
        made["content"] = raw.encode(errors="replace")
    return made


def send(page: Page, client: httpx.Client, made: dict[str, Any], **headers: str) -> int:
    answer = client.request(
        made["method"],
        page.address + made["path"],
        content=made.get("content"),
        headers={"Content-Type": "application/json", **headers},
        timeout=60,
    )
    if answer.status_code >= 400 and answer.content:
        assert "detail" in answer.json()
    return answer.status_code


SPEED = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


def test_nothing_that_the_api_is_sent_breaks_it(page: Page, description: dict[str, Any]) -> None:
    known = [str(job) for job in page.jobs] + [page.jobs[0].run, page.jobs[0].short]
    seen: dict[int, int] = {}
    with httpx.Client() as client:

        @SPEED
        @given(made=requests(description, known))
        def fuzz(made: dict[str, Any]) -> None:
            status = send(page, client, made, **page.bearer)
            assert status < 500, made
            seen[status] = seen.get(status, 0) + 1

        fuzz()
    # Some of what is sent is right, and some is wrong, or this would have tried nothing.
    assert seen.get(200, 0) > 5, seen
    assert seen.get(422, 0) > 5, seen


def test_without_the_token_nothing_is_changed(page: Page, description: dict[str, Any]) -> None:
    known = [str(job) for job in page.jobs]
    before = page.listing()
    with httpx.Client() as client:

        @SPEED
        @given(made=requests(description, known))
        def fuzz(made: dict[str, Any]) -> None:
            assert send(page, client, made) in (401, 400, 404)

        fuzz()
    assert page.listing() == before


def test_every_address_of_the_api_is_described(description: dict[str, Any]) -> None:
    assert {
        "/api/overview",
        "/api/jobs",
        "/api/jobs/{run}/{number}",
        "/api/jobs/{run}/{number}/log",
        "/api/history",
        "/api/trace",
        "/api/sweeps",
        "/api/requests/jobs",
        "/api/requests/queue",
        "/api/requests/agents",
    } <= set(description["paths"])


def test_the_description_names_the_verbs_of_the_command_line(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    for name, target in (
        ("JobsAction", "jobs"),
        ("QueueAction", "queue"),
        ("AgentsAction", "agents"),
    ):
        assert schemas[name]["properties"]["verb"]["enum"] == verbs_for(target)


def test_a_verb_takes_the_short_id_of_a_job(page: Page) -> None:
    for jobs, status in (([page.jobs[2].short], 200), ([f"x{page.jobs[2].short}"], 404)):
        body = {"verb": "priority", "value": 3, "jobs": jobs}
        answer = httpx.post(f"{page.address}/api/requests/jobs", json=body, headers=page.bearer)
        assert answer.status_code == status, answer.text
    (name,) = pending(FILES, page.base)[-1:]
    assert read_request(FILES, page.base, name).jobs == (page.jobs[2],)
