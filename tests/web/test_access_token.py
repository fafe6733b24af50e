"""The token of the page, and what is derived from it."""

from __future__ import annotations

import pytest

from postroom.errors import PostroomError
from postroom.web.access_token import AccessToken, Right


def test_a_short_token_is_refused() -> None:
    with pytest.raises(PostroomError, match="at least 16"):
        AccessToken("short")
    assert len(AccessToken().secret) > 40
    assert AccessToken().secret != AccessToken().secret


def test_cookie_and_form_key_are_derived_and_do_not_show_the_token() -> None:
    token, same, other = AccessToken("a" * 16), AccessToken("a" * 16), AccessToken("b" * 16)
    assert token.opens("a" * 16) is Right.ACT and not token.opens(token.cookie)
    assert token.knows_cookie(same.cookie) is Right.ACT and not token.knows_cookie(other.cookie)
    assert token.knows_form(same.form_key) and not token.knows_form(token.cookie)
    assert token.cookie_name != other.cookie_name
    assert token.secret not in token.set_cookie()


def test_the_second_token_is_for_looking_and_opens_nothing_where_it_is_not_given_out() -> None:
    shared, again = AccessToken("a" * 16, shared=True), AccessToken("a" * 16, shared=True)
    assert shared.opens(again.read_secret) is Right.LOOK  # it stays between starts
    assert shared.knows_cookie(again.read_cookie) is Right.LOOK
    assert shared.knows_form(shared.read_secret) is False
    assert shared.read_cookie in shared.set_cookie(Right.LOOK)
    alone = AccessToken("a" * 16)
    assert not alone.opens(shared.read_secret) and not alone.knows_cookie(shared.read_cookie)
    assert not alone.opens("") and not alone.knows_cookie("")
