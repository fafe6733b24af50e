"""Hostile requests are refused and change nothing; text from jobs stays text."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from urllib.parse import urlencode

import httpx
import pytest

from postroom.web.request_guard import MOST_BODY
from tests.web.conftest import SCRIPT, Page


def request(method: str, target: str, *headers: str, host: str = "", body: str = "") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}" if host else "", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    lines.append("Connection: close")
    head = "\r\n".join(line for line in lines if line)
    return f"{head}\r\n\r\n{body}".encode("latin-1")


JSON = "Content-Type: application/json"
FORM = "Content-Type: application/x-www-form-urlencoded"
EVIL = '{"commands": ["touch /tmp/pwned"]}'

# name: what is sent, and the statuses that refuse it (0: the line is cut)
Hostile = Callable[[Page, str, str], bytes]
HOSTILE: dict[str, tuple[Hostile, set[int]]] = {
    "no token": (lambda p, h, _: request("GET", "/", host=h), {401}),
    "no token, the API": (lambda p, h, _: request("GET", "/api/jobs", host=h), {401}),
    "no token, the metrics": (lambda p, h, _: request("GET", "/metrics", host=h), {401}),
    "no token, the news": (lambda p, h, _: request("GET", "/events", host=h), {401}),
    "no token, the description": (
        lambda p, h, _: request("GET", "/api/openapi.json", host=h),
        {401},
    ),
    "a wrong token": (lambda p, h, _: request("GET", "/?token=wrong", host=h), {401}),
    "an empty token": (lambda p, h, _: request("GET", "/?token=", host=h), {401}),
    "a wrong token among right ones": (
        lambda p, h, _: request("GET", f"/?token={p.token.secret}&token=x", host=h),
        {401},
    ),
    "a wrong bearer": (
        lambda p, h, _: request("GET", "/api/jobs", "Authorization: Bearer wrong", host=h),
        {401},
    ),
    "the token as basic": (
        lambda p, h, _: request(
            "GET", "/api/jobs", f"Authorization: Basic {p.token.secret}", host=h
        ),
        {401},
    ),
    "the token as cookie": (
        lambda p, h, _: request(
            "GET", "/", f"Cookie: {p.token.cookie_name}={p.token.secret}", host=h
        ),
        {401},
    ),
    "a wrong cookie": (
        lambda p, h, _: request("GET", "/", f"Cookie: {p.token.cookie_name}=00", host=h),
        {401},
    ),
    "a broken cookie": (
        lambda p, h, _: request("GET", "/", 'Cookie: a="\x01; ;=;;', host=h),
        {400, 401},
    ),
    "the token in the address of a post": (
        lambda p, h, _: request(
            "POST", f"/api/jobs?token={p.token.secret}", JSON, host=h, body=EVIL
        ),
        {401},
    ),
    "a foreign host": (lambda p, h, a: request("GET", "/", a, host="evil.example"), {421}),
    "a foreign host, posting": (
        lambda p, h, a: request("POST", "/api/jobs", a, JSON, host="evil.example", body=EVIL),
        {421},
    ),
    "a foreign host, a style sheet": (
        lambda p, h, a: request("GET", "/static/page.css", host="evil.example"),
        {421},
    ),
    "a host that ends like ours": (
        lambda p, h, a: request("GET", "/", a, host="127.0.0.1.evil.example"),
        {421},
    ),
    "a host with a name in it": (lambda p, h, a: request("GET", "/", a, host=f"x@{h}"), {421}),
    "no host": (lambda p, h, a: request("GET", "/", a), {400, 421}),
    "two hosts": (lambda p, h, a: request("GET", "/", a, f"Host: {h}", host=h), {400, 421}),
    "a target of another host": (
        lambda p, h, a: request("GET", "http://evil.example/api/jobs", a, host=h),
        {404},
    ),
    "a foreign origin, reading": (
        lambda p, h, a: request("GET", "/api/jobs", a, "Origin: http://evil.example", host=h),
        {403},
    ),
    "a foreign origin, posting": (
        lambda p, h, a: request(
            "POST", "/api/jobs", a, JSON, "Origin: http://evil.example", host=h, body=EVIL
        ),
        {403},
    ),
    "another port of this host": (
        lambda p, h, a: request(
            "POST", "/api/jobs", a, JSON, "Origin: http://127.0.0.1:1", host=h, body=EVIL
        ),
        {403},
    ),
    "no origin at all": (
        lambda p, h, a: request("POST", "/api/jobs", a, JSON, "Origin: null", host=h, body=EVIL),
        {403},
    ),
    "a script of another site": (
        lambda p, h, a: request(
            "GET", "/api/jobs", a, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", host=h
        ),
        {403},
    ),
    "a frame of a neighbour": (
        lambda p, h, a: request(
            "GET",
            "/",
            a,
            "Sec-Fetch-Site: same-site",
            "Sec-Fetch-Mode: navigate",
            "Sec-Fetch-Dest: iframe",
            host=h,
        ),
        {403},
    ),
    "a post across sites": (
        lambda p, h, a: request(
            "POST",
            "/act",
            f"Cookie: {p.cookie}",
            FORM,
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Mode: navigate",
            "Sec-Fetch-Dest: document",
            host=h,
            body="verb=pause",
        ),
        {403},
    ),
    "a form with no key": (
        lambda p, h, a: request(
            "POST",
            "/act",
            f"Cookie: {p.cookie}",
            FORM,
            f"Origin: http://{h}",
            host=h,
            body="verb=pause",
        ),
        {403},
    ),
    "a form with a wrong key": (
        lambda p, h, a: request(
            "POST",
            "/act",
            f"Cookie: {p.cookie}",
            FORM,
            f"Origin: http://{h}",
            host=h,
            body=urlencode({"verb": "kill", "job": str(p.jobs[0]), "form_key": "wrong"}),
        ),
        {403},
    ),
    "a form with the key and no origin": (
        lambda p, h, a: request(
            "POST",
            "/act",
            f"Cookie: {p.cookie}",
            FORM,
            host=h,
            body=urlencode({"verb": "kill", "job": str(p.jobs[0]), "form_key": p.token.form_key}),
        ),
        {403},
    ),
    "JSON with the cookie alone": (
        lambda p, h, a: request(
            "POST",
            "/api/jobs",
            f"Cookie: {p.cookie}",
            JSON,
            f"Origin: http://{h}",
            host=h,
            body=EVIL,
        ),
        {403},
    ),
    "a change by reading": (
        lambda p, h, a: request("GET", f"/act?verb=kill&job={p.jobs[0]}", a, host=h),
        {404, 405, 422},
    ),
    "a pause by reading": (
        lambda p, h, a: request("GET", "/act?verb=pause", a, host=h),
        {404, 405, 422},
    ),
    "a path that climbs": (
        lambda p, h, a: request("GET", "/static/../../../../etc/passwd", a, host=h),
        {404},
    ),
    "a path that climbs in code": (
        lambda p, h, a: request("GET", "/static/%2e%2e%2f%2e%2e%2fsecret.py", a, host=h),
        {404},
    ),
    "a path that climbs in double code": (
        lambda p, h, a: request("GET", "/static/%252e%252e%252fsecret.py", a, host=h),
        {404},
    ),
    "a path with a zero": (
        lambda p, h, a: request("GET", "/static/page.css%00.js", a, host=h),
        {404},
    ),
    "a job that climbs": (
        lambda p, h, a: request("GET", "/api/jobs/..%2f..%2fetc/0", a, host=h),
        {404, 422},
    ),
    "a log that climbs": (
        lambda p, h, a: request("GET", "/api/jobs/../../log/0/log", a, host=h),
        {404, 422},
    ),
    "a log of no stream": (
        lambda p, h, a: request("GET", f"/api/jobs/{p.jobs[0]}/log?stream=/etc/passwd", a, host=h),
        {422},
    ),
    "a job that is not there": (
        lambda p, h, a: request("GET", f"/jobs/{p.jobs[0].run}/999999", a, host=h),
        {404},
    ),
    "a huge body": (
        lambda p, h, a: request("POST", "/api/jobs", a, JSON, host=h, body="x" * (MOST_BODY + 1)),
        {413},
    ),
    "a huge body, announced": (
        lambda p, h, a: request("POST", "/api/jobs", a, "Content-Length: 99999999999", host=h),
        {413},
    ),
    "a huge body in chunks": (
        lambda p, h, a: (
            request("POST", "/api/jobs", a, "Transfer-Encoding: chunked", host=h)
            + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 20
            + b"0\r\n\r\n"
        ),
        {413},
    ),
    "a body without end": (
        lambda p, h, a: (
            request("POST", "/api/jobs", a, "Transfer-Encoding: chunked", host=h)
            + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 300
        ),
        {0, 413},
    ),
    "a body of a request that reads": (
        lambda p, h, a: request("GET", "/api/jobs", a, host=h, body="x"),
        {400},
    ),
    "a huge head": (
        lambda p, h, a: request("GET", "/", a, f"X-Filler: {'x' * 100_000}", host=h),
        {400, 431},
    ),
    "a slow body": (
        lambda p, h, a: request("POST", "/api/jobs", a, JSON, "Content-Length: 100", host=h),
        {408},
    ),
    "a slow head": (lambda p, h, a: b"GET / HTTP/1.1\r\nHost: ", {0}),
    "silence": (lambda p, h, a: b"", {0}),
    "a websocket": (
        lambda p, h, a: request(
            "GET",
            "/events",
            "Upgrade: websocket",
            "Sec-WebSocket-Key: x",
            "Sec-WebSocket-Version: 13",
            host=h,
        ),
        {401},
    ),
    "no HTTP at all": (
        lambda p, h, a: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
        {0, 400},
    ),
    **{
        f"the method {method}": (
            lambda p, h, a, method=method: request(method, "/api/jobs", a, host=h),
            {405},
        )
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get")
    },
}


@pytest.fixture(scope="module")
def before(page: Page) -> list[tuple[str, int, int]]:
    return page.listing()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused_and_change_nothing(
    page: Page, before: list[tuple[str, int, int]], name: str
) -> None:
    make, refusals = HOSTILE[name]
    host = f"127.0.0.1:{page.port}"
    status, answer = page.say(make(page, host, f"Authorization: Bearer {page.token.secret}"))
    assert status in refusals, answer[:500]
    assert page.listing() == before
    assert page.token.secret not in answer
    assert page.token.cookie not in answer
    assert "root:" not in answer


def test_there_are_at_least_24_hostile_requests() -> None:
    assert len(HOSTILE) >= 24


def test_silent_connections_do_not_block_others(page: Page) -> None:
    lines = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(50)]
    try:
        assert httpx.get(page.address + "/api/jobs", headers=page.bearer).status_code == 200
    finally:
        for line in lines:
            line.close()


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(page: Page) -> None:
    answer = httpx.get(f"{page.address}/jobs?state=ok&token={page.token.secret}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/jobs?state=ok"
    cookie = answer.headers["set-cookie"]
    assert page.token.secret not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    headers = {"Cookie": cookie.partition(";")[0]}
    assert httpx.get(page.address + "/jobs", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "foreign",
    ['{"a": 1, "b": [2]}', "one two=three", "=", 'a="b; c=d', "x[y]=z", "caf\xe9=\xff", "a=b;;;"],
)
def test_a_cookie_of_another_server_on_this_host_locks_nobody_out(page: Page, foreign: str) -> None:
    for cookie in (f"{foreign}; {page.cookie}", f"{page.cookie}; {foreign}"):
        host = f"127.0.0.1:{page.port}"
        status, _ = page.say(request("GET", "/", f"Cookie: {cookie}", host=host))
        assert status == 200
    assert page.say(request("GET", "/", f"Cookie: {foreign}", host=host))[0] == 401


@pytest.mark.parametrize("path", ["//evil.example", "//evil.example/%2e%2e", "/%0d%0aSet-Cookie:x"])
def test_the_token_is_never_exchanged_for_a_way_elsewhere(page: Page, path: str) -> None:
    raw = request("GET", f"{path}?token={page.token.secret}", host=f"127.0.0.1:{page.port}")
    _, answer = page.say(raw)
    location = next(line for line in answer.splitlines() if line.startswith("location:"))
    assert location.split()[1].startswith("/")
    assert not location.split()[1].startswith("//")


def test_the_page_that_asks_for_the_token_takes_it(page: Page) -> None:
    asked = httpx.get(page.address + "/", headers={"Accept": "text/html"})
    assert asked.status_code == 401
    assert 'name="token"' in asked.text
    for text in (page.token.secret, f"{page.address}/?token={page.token.secret}"):
        answer = httpx.post(page.address + "/login", data={"token": text})
        assert page.token.cookie in answer.headers["set-cookie"]
    wrong = httpx.post(page.address + "/login", data={"token": "wrong"})
    assert "set-cookie" not in wrong.headers


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/submit", "/history", "/api/jobs", "/metrics", "/static/page.css", "/x"]
)
def test_every_answer_forbids_what_it_does_not_need(page: Page, path: str) -> None:
    answer = httpx.get(page.address + path, headers=page.bearer)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert "cache-control" in answer.headers
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


def test_names_and_output_of_jobs_are_text(page: Page) -> None:
    for path in ("/", "/jobs", "/projects", "/history", "/submit", f"/jobs/{page.jobs[0]}"):
        answer = httpx.get(page.address + path, headers=page.bearer)
        assert answer.status_code == 200
        assert SCRIPT not in answer.text, path
    shown = httpx.get(f"{page.address}/jobs/{page.jobs[0]}", headers=page.bearer).text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;\nred" in shown
    assert "\x1b" not in shown
    found = httpx.get(f"{page.address}/jobs?text={SCRIPT}", headers=page.bearer)
    assert SCRIPT not in found.text
    log = httpx.get(f"{page.address}/api/jobs/{page.jobs[0]}/log", headers=page.bearer)
    assert json.loads(log.text)["text"] == f"{SCRIPT}\nred \n"


OWN_PAGES = ["/", "/jobs", "/projects", "/agents", "/history", "/submit", "/sweep"]


def test_who_may_only_look_sees_every_page_and_finds_nothing_to_change(page: Page) -> None:
    with httpx.Client(base_url=page.address, headers={"Accept": "text/html"}, timeout=60) as client:
        client.get(f"/?token={page.token.read_secret}", follow_redirects=True)
        for path in [*OWN_PAGES[:5], f"/jobs/{page.jobs[0]}"]:
            shown = client.get(path)
            assert shown.status_code == 200, path
            assert 'method="post"' not in shown.text, path
            assert page.token.form_key not in shown.text, path
            assert "you may look, and change nothing" in shown.text
        for path in OWN_PAGES[5:]:
            assert client.get(path).status_code == 403
        assert client.get(f"/submit?again={page.jobs[0]}").status_code == 403


def test_who_may_only_look_changes_nothing_whatever_is_sent(page: Page) -> None:
    description = httpx.get(page.address + "/api/openapi.json", headers=page.bearer).json()
    posts = [path for path, methods in description["paths"].items() if "post" in methods]
    before = page.listing()
    cookie = f"{page.token.cookie_name}={page.token.read_cookie}"
    for path in [*posts, "/act", "/pilots", "/submit", "/sweep"]:
        for headers in (
            {"Authorization": f"Bearer {page.token.read_secret}"},
            {"Cookie": cookie, "Origin": page.address, "X-Form-Key": page.token.form_key},
        ):
            fields = {"verb": "kill", "job": str(page.jobs[0]), "form_key": page.token.form_key}
            answer = httpx.post(page.address + path, data=fields, headers=headers)
            assert (answer.status_code, path) == (403, path)
    assert len(posts) > 5
    assert page.listing() == before
