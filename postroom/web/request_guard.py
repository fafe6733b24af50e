"""Checks every request before the page sees it: who sends it, to whom, and how much.

- The Host is a name of this page. Otherwise another site could point its own name at this machine
  (DNS rebinding).
- The Origin, if a browser sends one, is this page. So is Sec-Fetch-Site, except when somebody
  follows a link. Both hold for every method.
- The token is known: from the address once, which sets a cookie, or as a bearer token.
- A request that changes something and uses the cookie carries the key of this page's forms.
- The body is small and arrives in time.
- The read-only token opens no form, and no request with it changes anything.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access_token import AccessToken, Right

READING = ("GET", "HEAD")
METHODS = (*READING, "POST")
MOST_HEAD = 32 << 10
MOST_BODY = 1 << 20
# Read a body that is too long up to here: a browser reads no answer while it is sending.
MOST_READ = 16 << 20
BODY_S = 10.0
MOST_FIELDS = 20_000
RIGHT = "postroom.right"  # of the sender, in the scope of a request
FOR_OWNERS = frozenset({"/submit", "/sweep"})  # they show environments, too
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
FORM = "application/x-www-form-urlencoded"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::(\d{1,5}))?")

HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not no-referrer: a browser then sends no Origin with the forms of this page.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


class Refused(Exception):
    """A request that is refused."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class RequestGuard:
    """Wraps the application."""

    def __init__(
        self, app: ASGIApp, token: AccessToken, hosts: Iterable[str], *, stop: Callable[[], None]
    ) -> None:
        self.stop = stop  # called at shutdown: event streams do not end by themselves
        self._app = app
        self._token = token
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket: the page has none
        send = _with_headers(send)
        headers = _headers(scope)
        try:
            self._check_sender(scope, headers)
            if self._is_open(scope["path"]):
                opened_by = "nothing"
            else:
                opened_by, right = self._opened_by(headers)
                if scope["method"] in READING and (found := self._token_in_address(scope)):
                    await _redirect(send, found[0], self._token.set_cookie(found[1]))
                    return
                if not right:
                    raise Refused(401, "This page needs its token.")
                if right is not Right.ACT and (
                    scope["method"] not in READING or scope["path"] in FOR_OWNERS
                ):
                    raise Refused(403, "This address of the page is read-only.")
                scope[RIGHT] = right
            if scope["method"] in READING:
                _refuse_body(headers)
            else:
                body = await _whole_body(receive, headers)
                if opened_by == "cookie":
                    self._check_form(headers, body)
                receive = _replay(body, receive)
            await self._app(scope, receive, send)
        except Refused as refusal:
            await _refuse(send, scope, refusal)

    def _is_open(self, path: str) -> bool:
        """Whether a path needs no token: the login form and its style sheet."""
        return path == "/login" or path.startswith("/static/")

    def _check_sender(self, scope: Scope, headers: dict[str, list[str]]) -> None:
        method = scope["method"]
        if method not in METHODS:
            raise Refused(405, f"This page does not accept the method {method[:20]}.")
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["query_string"]) + len(scope["path"]) > MOST_HEAD:
            raise Refused(431, f"The headers of a request may have {MOST_HEAD >> 10} KiB at most.")
        hosts = headers.get("host", [])
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or match[1].lower() not in self._hosts:
            raise Refused(
                421,
                "This page does not answer to that host name. Use the address that `postroom ui` "
                "printed, or start it with --name HOSTNAME.",
            )
        own = {f"http://{hosts[0]}".lower(), f"https://{hosts[0]}".lower()}
        origins = headers.get("origin", [])
        if any(origin.lower() not in own for origin in origins):
            raise Refused(403, "Requests from other sites are refused.")
        site = headers.get("sec-fetch-site", ["none"])
        if any(word not in ("same-origin", "none") for word in site) and not (
            method in READING
            and headers.get("sec-fetch-mode") == ["navigate"]
            and headers.get("sec-fetch-dest") == ["document"]
        ):
            raise Refused(403, "Requests from other sites are refused.")

    def _opened_by(self, headers: dict[str, list[str]]) -> tuple[str, Right]:
        """How a request proves that it knows the token ("bearer", "cookie"), and its right."""
        for value in headers.get("authorization", []):
            kind, _, text = value.partition(" ")
            if kind.lower() == "bearer" and (right := self._token.opens(text.strip())):
                return "bearer", right
        for value in headers.get("cookie", []):
            # By hand: `http.cookies` gives up at a cookie of another server that it cannot parse.
            for pair in value.split(";"):
                name, _, text = pair.strip().partition("=")
                if name == self._token.cookie_name and (right := self._token.knows_cookie(text)):
                    return "cookie", right
        return "", Right.NONE

    def _token_in_address(self, scope: Scope) -> tuple[str, Right] | None:
        """The address without the token that it holds, and its right; None when it holds none."""
        query = scope["query_string"].decode("latin-1")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            raise Refused(400, "The address has too many fields.") from None
        tokens = [value for name, value in pairs if name == "token"]
        if not tokens:
            return None
        rights = {self._token.opens(token) for token in tokens}
        if len(rights) != 1 or Right.NONE in rights:
            raise Refused(401, "This is not the token of this page.")
        rest = urlencode([pair for pair in pairs if pair[0] != "token"])
        path: str = "/" + scope["path"].lstrip("/")  # two slashes would name another host
        if not re.fullmatch(r"[\w/.-]*", path, re.ASCII):
            path = "/"
        return path + (f"?{rest}" if rest else ""), rights.pop()

    def _check_form(self, headers: dict[str, list[str]], body: bytes) -> None:
        given = headers.get("x-form-key", [])
        if not given and headers.get("content-type", [""])[0].split(";")[0].strip() == FORM:
            given = fields_of(body).get("form_key", [])
        proven = headers.get("origin") or headers.get("sec-fetch-site") == ["same-origin"]
        if not proven or len(given) != 1 or not self._token.knows_form(given[0]):
            raise Refused(
                403, "The form is not from this page, or is too old. Reload the page and try again."
            )


def fields_of(body: bytes) -> dict[str, list[str]]:
    """The fields of a form."""
    try:
        text = body.decode()
        return parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Refused(400, "The form cannot be read.") from None


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _refuse_body(headers: dict[str, list[str]]) -> None:
    if headers.get("content-length", ["0"]) != ["0"] or "transfer-encoding" in headers:
        raise Refused(400, "A GET request must have no body.")


async def _whole_body(receive: Receive, headers: dict[str, list[str]]) -> bytes:
    """Read a body that is small and arrives in time; an incomplete one is refused."""
    too_long = Refused(413, f"A request may have {MOST_BODY >> 20} MiB at most.")
    stated = headers.get("content-length", ["0"])[0]
    if not stated.isascii() or not stated.isdigit() or int(stated) > MOST_READ:
        raise too_long
    body = bytearray()
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Refused(400, "The request is incomplete.")
                size += len(message.get("body", b""))
                if size <= MOST_BODY:
                    body += message.get("body", b"")
                if size > MOST_READ or (size > MOST_BODY and not message.get("more_body")):
                    raise too_long
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, f"The request took longer than {BODY_S:g} seconds to arrive.") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send) -> Send:
    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            extra = [pair for pair in HEADERS if pair[0] not in present]
            if b"cache-control" not in present:
                extra.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return send_more


async def _redirect(send: Send, where: str, cookie: str) -> None:
    headers = [(b"location", where.encode("ascii")), (b"set-cookie", cookie.encode())]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, scope: Scope, refusal: Refused) -> None:
    """Answer with one sentence: as a page for a browser, else as JSON."""
    accepts = b"".join(value for name, value in scope["headers"] if name == b"accept")
    kind, body = "application/json", json.dumps({"detail": refusal.sentence})
    if b"text/html" in accepts and not scope["path"].startswith("/api/"):
        kind, body = "text/html; charset=utf-8", _page(refusal)
    data = body.encode()
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(data)).encode()),
        # The rest of the request is not read.
        (b"connection", b"close"),
    ]
    if refusal.status == 405:
        headers.append((b"allow", ", ".join(METHODS).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


_FORM = """
<p>Paste the token, or the whole address that <code>postroom ui</code> printed.</p>
<form method="post" action="/login">
<p><label for="token">Token</label></p>
<p><input id="token" name="token" type="password" autocomplete="off" required autofocus></p>
<p><button>Open the page</button></p>
</form>"""


def _page(refusal: Refused) -> str:
    sentence = html.escape(refusal.sentence)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Postroom</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/static/page.css"></head><body><main class="narrow">'
        f"<h1>Postroom</h1><p>{sentence}</p>{_FORM if refusal.status == 401 else ''}"
        "</main></body></html>"
    )
