"""The token that opens the page, and the cookie and form key that are derived from it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import StrEnum

from ..errors import PostroomError

LEAST_TOKEN = 16


class Right(StrEnum):
    """What somebody may do at the page."""

    NONE = ""
    LOOK = "look"  # all pages but those that submit; no change
    ACT = "act"  # everything


class AccessToken:
    """One secret, as in Jupyter: everybody who knows it may use the page.

    The browser does not keep the token itself. It gets a cookie that is derived from it, and each
    form carries a key, which other sites cannot know. From the secret follows a second token, for
    those who may only look; it opens the page only if `shared`.
    """

    def __init__(self, token: str = "", *, shared: bool = False) -> None:
        if token and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
            raise PostroomError(
                f"a token needs at least {LEAST_TOKEN} plain characters; leave it out to get one"
            )
        self.secret = token or secrets.token_urlsafe(32)
        self.read_secret = self._derive("read") if shared else ""
        self.cookie = self._derive("cookie")
        self.read_cookie = self._derive("read cookie") if shared else ""
        self.form_key = self._derive("form")
        # All ports of a host share their cookies: the pages of two bases need different names.
        self.cookie_name = "postroom-" + self._derive("name")[:12]

    def opens(self, text: str) -> Right:
        """What a token gives the right to."""
        return _right(text, self.secret, self.read_secret)

    def knows_cookie(self, text: str) -> Right:
        """What a cookie gives the right to."""
        return _right(text, self.cookie, self.read_cookie)

    def knows_form(self, text: str) -> bool:
        """Whether this is the key of this page's forms."""
        return _same(text, self.form_key)

    def set_cookie(self, right: Right = Right.ACT) -> str:
        """The header that sets the cookie: hidden from scripts, and for this page only."""
        value = self.cookie if right is Right.ACT else self.read_cookie
        return f"{self.cookie_name}={value}; Path=/; HttpOnly; SameSite=Strict"

    def _derive(self, use: str) -> str:
        return hmac.new(self.secret.encode(), use.encode(), hashlib.sha256).hexdigest()


def _right(text: str, act: str, look: str) -> Right:
    if _same(text, act):
        return Right.ACT
    return Right.LOOK if look and _same(text, look) else Right.NONE


def _same(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
