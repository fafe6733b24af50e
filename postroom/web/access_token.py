"""The token that opens the page, and the cookie and form key that are derived from it."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from ..errors import PostroomError

LEAST_TOKEN = 16


class AccessToken:
    """One secret, as in Jupyter: everybody who knows it may use the page.

    The browser does not keep the token itself. It gets a cookie that is derived from it, and each
    form carries a key, which other sites cannot know.
    """

    def __init__(self, token: str = "") -> None:
        if token and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
            raise PostroomError(
                f"a token needs at least {LEAST_TOKEN} plain characters; leave it out to get one"
            )
        self.secret = token or secrets.token_urlsafe(32)
        self.cookie = self._derive("cookie")
        self.form_key = self._derive("form")
        # All ports of a host share their cookies: the pages of two bases need different names.
        self.cookie_name = "postroom-" + self._derive("name")[:12]

    def opens(self, text: str) -> bool:
        """Whether this is the token."""
        return _same(text, self.secret)

    def knows_cookie(self, text: str) -> bool:
        """Whether this is the cookie of this page."""
        return _same(text, self.cookie)

    def knows_form(self, text: str) -> bool:
        """Whether this is the key of this page's forms."""
        return _same(text, self.form_key)

    def set_cookie(self) -> str:
        """The header that sets the cookie: hidden from scripts, and for this page only."""
        return f"{self.cookie_name}={self.cookie}; Path=/; HttpOnly; SameSite=Strict"

    def _derive(self, use: str) -> str:
        return hmac.new(self.secret.encode(), use.encode(), hashlib.sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
