"""Reads a list of GPUs into slots: `0,0,1`, `all`, `2-5`, `0,1;2,3`, `cpu`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import GpuError

if TYPE_CHECKING:
    from .inventory import Card

_RANGE = re.compile(r"(\d+)-(\d+)")
_MANY = re.compile(r"(\d+)x(.+)")
# An index, `cpu`, or a uuid such as GPU-8f2a or MIG-GPU-8f2a/1/0.
_NAME = re.compile(r"\d+|cpu|[A-Za-z0-9]+-[A-Za-z0-9/_-]+")
MOST_SLOTS = 1024


@dataclass(frozen=True)
class SlotSpec:
    """One slot: the id of its agent, and its card or cards."""

    agent: str
    gpu: str  # as the argument of a session: "0", "0,1", "cpu"
    share: bool = False  # each job reserves part of one of the cards


def parse_gpus(text: str, look: Callable[[], Sequence[Card]] | None = None) -> list[SlotSpec]:
    """Read a list of GPUs. A repeated GPU is another slot; `;` separates slots of several GPUs.

    A GPU that the machine does not have is an error; on a machine with none, all slots are on the
    CPU. `look` lists the visible GPUs; a list of `cpu` does without it.
    """
    known = _Known(look)
    grouped = ";" in text
    groups: list[tuple[str, ...]] = []
    for part in filter(None, (part.strip() for part in text.split(";" if grouped else ","))):
        ids = _expand(part, known)
        groups += [tuple(ids)] if grouped else [(one,) for one in ids]
    if not groups:
        raise GpuError(f"--gpus {text!r} names no GPU: write it as 0,0,1 or all or cpu")
    if len(groups) > MOST_SLOTS:
        raise GpuError(f"--gpus {text!r} makes {len(groups)} slots; the limit is {MOST_SLOTS}")
    for group in groups:
        if len(set(group)) < len(group) or ("cpu" in group and len(group) > 1):
            raise GpuError(f"a slot of several GPUs needs different ones, not {','.join(group)}")
    known.check(dict.fromkeys(word for group in groups for word in group))
    slots: list[SlotSpec] = []
    times: dict[tuple[str, ...], int] = {}
    for group in groups:
        times[group] = times.get(group, 0) + 1
        stem = re.sub(r"[^A-Za-z0-9_-]", "-", "-".join(group))
        slots.append(SlotSpec(stem + _suffix(times[group]), ",".join(group)))
    return slots


def cards_of(slots: Sequence[SlotSpec]) -> list[Card]:
    """Return the cards of some slots, each once, for jobs that share them by memory."""
    from . import inventory

    words = {slot.gpu for slot in slots}
    pairs = sorted(word for word in words if "," in word)
    if pairs:
        raise GpuError(f"with --memory each job uses part of one GPU, not of the pair {pairs[0]}")
    cards = [inventory.find(word) for word in sorted(words - {"cpu"})]
    return sorted({card.uuid: card for card in cards}.values(), key=lambda card: card.index)


class _Known:
    """The GPUs of the machine, asked for when a list names the first one."""

    def __init__(self, look: Callable[[], Sequence[Card]] | None) -> None:
        self._look = look

    @cached_property
    def cards(self) -> Sequence[Card]:
        from . import inventory

        return (self._look or inventory.cards)()

    def check(self, words: Iterable[str]) -> None:
        """Refuse a GPU that does not exist; the error names it."""
        from . import inventory

        for word in words:
            if word != "cpu" and self.cards:
                inventory.select(self.cards, word)

    def usable(self) -> Sequence[str]:
        return [str(card.index) for card in self.cards if not card.problem]


def _expand(text: str, known: _Known) -> list[str]:
    found: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        span, many = _RANGE.fullmatch(word), _MANY.fullmatch(word)
        if word == "all":
            found += known.usable() or ["cpu"]
        elif span:
            first, last = map(int, span.groups())
            if not first <= last < first + MOST_SLOTS:
                raise GpuError(f"{word!r} is no range of GPUs: write the smaller number first")
            found += map(str, range(first, last + 1))
        elif many and int(many[1]) <= MOST_SLOTS and _NAME.fullmatch(many[2]):
            found += [many[2]] * int(many[1])
        elif _NAME.fullmatch(word):
            found.append(word)
        else:
            raise GpuError(f"{word!r} names no GPU: write the list as 0,0,1 or all or 2-5 or cpu")
    return found


def _suffix(time: int) -> str:
    if time == 1:
        return ""
    return chr(ord("a") + time - 1) if time <= 26 else f"-{time}"


class GpuFile:
    """A file with the list of GPUs, read again when it changes."""

    def __init__(
        self,
        path: str,
        look: Callable[[], Sequence[Card]] | None = None,
        *,
        say: Callable[[str], None] = lambda _: None,
        shared: bool = False,
    ) -> None:
        """`shared`: jobs share the GPUs by memory, so the list must do for `cards_of`."""
        self._path = path
        self._shared = shared
        self._look = look
        self._say = say
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> list[SlotSpec] | None:
        """Return the slots if the file has changed since the last call; none for an empty file.

        A list that cannot be read raises an error the first time. Later it is only reported, and
        the slots stay as they are: a typo must not stop running jobs.
        """
        try:
            status = os.stat(self._path)
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return None
            with open(self._path, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError as error:
            if self._seen is None:
                raise GpuError(
                    f"cannot read the list of GPUs in {self._path!r}: {error.strerror}"
                ) from None
            return None  # it is being replaced: try again later
        words = [line.partition("#")[0].strip() for line in text.splitlines()]
        listed = ("," if ";" not in text else ";").join(filter(None, words))
        first, self._seen = self._seen is None, seen
        try:
            slots = parse_gpus(listed, self._look) if listed else []
            if self._shared:
                cards_of(slots)
            return slots
        except GpuError as error:
            if first:
                self._seen = None
                raise
            self._say(f"{self._path}: {error}; the slots stay as they were")
            return None
