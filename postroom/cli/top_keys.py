"""What the keys of `postroom top` do: a pure function of what is on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..queue.rows import ENDED, JobView

UP, DOWN, PAGE_UP, PAGE_DOWN = "up", "down", "page up", "page down"
ENTER, ESCAPE, BACK = "\n", "\x1b", "\x7f"
PAGE = 10
# What terminals send for keys that are no characters.
SEQUENCES = {
    "\x1b[A": UP,
    "\x1b[B": DOWN,
    "\x1bOA": UP,
    "\x1bOB": DOWN,
    "\x1b[5~": PAGE_UP,
    "\x1b[6~": PAGE_DOWN,
    "\r": ENTER,
    "\x08": BACK,
}
_MOVES = {UP: -1, "k": -1, DOWN: 1, "j": 1, PAGE_UP: -PAGE, PAGE_DOWN: PAGE}


@dataclass(frozen=True)
class TopState:
    """What a person has chosen on the screen."""

    selected: str = ""  # the id of a job
    filter: str = ""
    typing: bool = False  # the keys go into the filter
    log: bool = False  # the screen shows the log of the selected job
    back: int = 0  # how many lines of the log are below the screen
    confirm: str = ""  # a verb that waits for a `y`
    message: str = ""
    quit: bool = False


@dataclass(frozen=True)
class Pressed:
    """What came of a key: the new state, and a verb for the selected job."""

    state: TopState
    verb: str = ""  # "kill", "hold", "release", "rerun"


def press(state: TopState, key: str, rows: Sequence[JobView]) -> Pressed:
    """Press a key; `rows` are the jobs on the screen, in their order."""
    if state.typing:
        return Pressed(_type(state, key))
    if state.confirm:
        verb = state.confirm if key in ("y", "Y") else ""
        return Pressed(replace(state, confirm="", message="" if verb else "not done"), verb)
    state = replace(state, message="")
    if state.log:
        return Pressed(_read(state, key))
    row = next((row for row in rows if row.id == state.selected), None)
    if key in _MOVES:
        return Pressed(_move(state, _MOVES[key], rows))
    if key in ("q", "Q", ""):
        return Pressed(replace(state, quit=True))
    if key == "/":
        return Pressed(replace(state, typing=True))
    if key == ESCAPE:
        return Pressed(replace(state, filter="", selected=""))
    if key in (ENTER, "l", "x", "h", "r") and row is None:
        return Pressed(replace(state, message="select a job first, with the arrows"))
    if key in (ENTER, "l"):
        return Pressed(replace(state, log=True, back=0))
    if row is not None and key == "x":
        if row.state in ENDED:
            return Pressed(replace(state, message=f"{row.short} has ended already"))
        return Pressed(replace(state, confirm="kill"))
    if row is not None and key == "h":
        return Pressed(state, "release" if row.state == "held" else "hold")
    if row is not None and key == "r":
        return Pressed(replace(state, confirm="rerun"))
    return Pressed(state)


def _type(state: TopState, key: str) -> TopState:
    if key == ENTER:
        return replace(state, typing=False)
    if key == ESCAPE:
        return replace(state, typing=False, filter="")
    if key == BACK:
        return replace(state, filter=state.filter[:-1])
    is_letter = len(key) == 1 and key.isprintable()
    return replace(state, filter=state.filter + key) if is_letter else state


def _read(state: TopState, key: str) -> TopState:
    if key in ("q", "Q", ESCAPE, "l", ENTER, ""):
        return replace(state, log=False, quit=key == "")
    return replace(state, back=max(0, state.back - _MOVES.get(key, 0)))


def _move(state: TopState, by: int, rows: Sequence[JobView]) -> TopState:
    if not rows:
        return state
    ids = [row.id for row in rows]
    if state.selected not in ids:
        return replace(state, selected=ids[0 if by > 0 else -1])
    place = ids.index(state.selected) + by
    return replace(state, selected=ids[max(0, min(place, len(ids) - 1))])


def split_keys(text: str) -> list[str]:
    """Take apart what a terminal sent at once."""
    keys = []
    while text:
        for sequence, key in SEQUENCES.items():
            if text.startswith(sequence):
                keys.append(key)
                text = text[len(sequence) :]
                break
        else:
            if text.startswith(("\x1b[", "\x1bO")):
                text = text[3:]  # a key that means nothing here
                continue
            keys.append(text[0])
            text = text[1:]
    return keys
