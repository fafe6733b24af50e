"""The token that opens the page, and what is derived from it."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from ..errors import PostroomError

LEAST_TOKEN = 16


class AccessToken:
    """One secret, as Jupyter has it: whoever knows it may use the page.

    The browser is never left with the token itself: it gets a cookie that is derived from it, and
    each form another text, which a page of somebody else's could not know.
    """

    def __init__(self, token: str = "") -> None:
        if token and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
            raise PostroomError(
                f"a token is at least {LEAST_TOKEN} plain characters; leave it out to get a random "
                "one"
            )
        self.token = token or secrets.token_urlsafe(32)
        self.cookie = self._derive("cookie")
        self.form = self._derive("form")
        # Cookies are shared between the ports of a host: pages of two bases must not log each
        # other out.
        self.cookie_name = "postroom-" + self._derive("name")[:12]

    def opens(self, text: str) -> bool:
        """Whether this is the token."""
        return _same(text, self.token)

    def knows_cookie(self, text: str) -> bool:
        """Whether this cookie is ours."""
        return _same(text, self.cookie)

    def knows_form(self, text: str) -> bool:
        """Whether a form comes from a page of ours."""
        return _same(text, self.form)

    def set_cookie(self) -> str:
        """How a browser is told to keep the cookie: from scripts, and for this page only."""
        return f"{self.cookie_name}={self.cookie}; Path=/; HttpOnly; SameSite=Strict"

    def _derive(self, use: str) -> str:
        return hmac.new(self.token.encode(), use.encode(), hashlib.sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
