"""What each key of the full screen does, without a terminal."""

from __future__ import annotations

import pytest

from postroom.cli.top_keys import (
    BACK,
    DOWN,
    ENTER,
    ESCAPE,
    PAGE_DOWN,
    UP,
    TopState,
    press,
    split_keys,
)
from postroom.queue.rows import JobView


def job(number: int, state: str = "queued") -> JobView:
    return JobView(f"r/{number}", f"r/{number}", "r", number, "", "p", "u", "true", state)


ROWS = [job(0, "running"), job(1), job(2, "held"), job(3, "ok")]


def pressed(keys: list[str], state: TopState | None = None) -> tuple[TopState, list[str]]:
    state, verbs = state or TopState(), []
    for key in keys:
        said = press(state, key, ROWS)
        state = said.state
        verbs += [said.verb] if said.verb else []
    return state, verbs


@pytest.mark.parametrize(
    ("keys", "selected"),
    [
        ([DOWN], 0),
        ([UP], 3),
        ([DOWN, DOWN, "j", "k"], 1),
        ([DOWN, UP, UP], 0),
        ([DOWN, PAGE_DOWN], 3),
    ],
)
def test_a_job_is_selected(keys: list[str], selected: int) -> None:
    assert pressed(keys)[0].selected == f"r/{selected}"
    gone = TopState(selected="r/99")
    assert press(gone, DOWN, ROWS).state.selected == "r/0"
    assert press(gone, DOWN, []).state == gone


def test_nothing_is_killed_without_a_yes() -> None:
    state, verbs = pressed([DOWN, "x"])
    assert state.confirm == "kill" and not verbs
    assert pressed(["y"], state)[1] == ["kill"]
    for key in ("n", ENTER, DOWN, "q", ESCAPE):
        after, verbs = pressed([key], state)
        assert not verbs and not after.confirm and not after.quit
    assert pressed([DOWN, "r", "y"])[1] == ["rerun"]


def test_a_job_that_has_ended_is_not_killed_and_nothing_is_done_to_no_job() -> None:
    state, verbs = pressed([UP, "x", "y"])
    assert not verbs and not state.confirm
    for key in ("x", "h", "r", ENTER):
        state, verbs = pressed([key])
        assert not verbs and not state.confirm and not state.log and state.message


def test_hold_and_release_are_one_key() -> None:
    assert pressed([DOWN, DOWN, "h"])[1] == ["hold"]
    assert pressed([DOWN, DOWN, DOWN, "h"])[1] == ["release"]


def test_keys_go_into_the_filter_while_it_is_typed() -> None:
    state, verbs = pressed([DOWN, "/", "x", "q", "y", BACK, DOWN])
    assert (state.filter, state.typing, state.quit, verbs) == ("xq", True, False, [])
    state, _ = pressed([ENTER], state)
    assert (state.filter, state.typing) == ("xq", False)
    assert pressed([ESCAPE], state)[0].filter == ""


def test_the_log_is_scrolled_and_left() -> None:
    state, _ = pressed([DOWN, ENTER, UP, UP, DOWN])
    assert (state.log, state.back) == (True, 1)
    assert pressed([DOWN, DOWN], state)[0].back == 0
    left, verbs = pressed(["q"], state)
    assert not left.log and not left.quit and not verbs
    assert pressed(["q"], left)[0].quit
    assert pressed([""], state)[0].quit  # the terminal is gone


def test_what_a_terminal_sends_at_once_is_taken_apart() -> None:
    assert split_keys("\x1b[A\x1bOBj\r\x1b") == [UP, DOWN, "j", ENTER, ESCAPE]
    assert split_keys("\x1b[Zq") == ["q"]
    assert split_keys("") == []
