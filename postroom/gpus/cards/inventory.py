"""What cards there are: the drivers' or simulated ones, in PCI order, as far as we may see them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...errors import GpuError

if TYPE_CHECKING:
    from .nvml import NvmlProbe


class Usage(NamedTuple):
    """One process on a card."""

    pid: int
    user: str
    command: str
    used_mib: int
    compute: bool = True  # False: it only draws (a desktop)


class Card(NamedTuple):
    """One GPU, or one MIG slice of a GPU; `index` is its number in PCI order.

    What could not be asked is None. A card with `problem` set is known but sick or lost.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    uuid: str
    name: str
    memory_mib: int
    kind: str  # "cuda", "mig", "amd" or "fake"
    used_mib: int | None = None
    utilisation: int | None = None  # per cent
    temperature: int | None = None  # degrees Celsius
    power: float | None = None  # watts
    processes: tuple[Usage, ...] = ()
    problem: str = ""

    @property
    def visible_id(self) -> str:
        """Return what CUDA_VISIBLE_DEVICES calls it: a number, and a uuid only for MIG slices."""
        return self.uuid if self.kind == "mig" else str(self.index)

    @property
    def free_mib(self) -> int | None:
        """Return what is not in use at this moment, by anybody."""
        return None if self.used_mib is None else self.memory_mib - self.used_mib


def cards() -> list[Card]:
    """List the cards in sight, in PCI order; an empty list when there are none.

    POSTROOM_FAKE_GPUS invents cards; CUDA_VISIBLE_DEVICES hides some. Raises `GpuError` when there
    is a driver that does not answer as it should.
    """
    with CardWatch() as watch:
        return watch.cards()


class CardWatch:
    """Asks for the cards again and again, keeping the child that asks the driver.

    The child starts at once, and gets ready while its maker does something else. `alone` says that
    this process has one thread and is all ours: then the child is made faster.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone
        self._probe = None if "POSTROOM_FAKE_GPUS" in os.environ else self._start()

    def _start(self) -> NvmlProbe:
        from . import nvml

        return nvml.NvmlProbe(alone=self._alone)

    def cards(self) -> list[Card]:
        """List the cards in sight as they are now."""
        fake = os.environ.get("POSTROOM_FAKE_GPUS")
        if fake is not None:
            from . import simulated as simulated

            return visible(simulated.cards(fake), os.environ)
        self._probe = self._probe or self._start()
        found = self._probe.cards()
        if not found:
            self.close()  # without a driver it has ended
            from . import amd

            found = amd.cards()
        return visible(found, os.environ)

    def close(self) -> None:
        """End the child that asks the driver."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def __enter__(self) -> CardWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def visible(found: Sequence[Card], environment: os._Environ[str] | dict[str, str]) -> list[Card]:
    """Return the cards that the environment leaves in sight, as CUDA and HIP read it."""
    names = ["CUDA_VISIBLE_DEVICES"]
    if any(card.kind == "amd" for card in found):
        names = ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
    wish = next((environment[name] for name in names if name in environment), None)
    if wish is None:
        return list(found)
    chosen: list[Card] = []
    for word in wish.split(","):
        try:
            card = select(found, word.strip())
        except GpuError:
            break  # as CUDA does: what follows an unknown id is hidden, too
        if card in chosen:
            return []  # as CUDA does: an id given twice hides everything
        chosen.append(card)
    return sorted(chosen, key=lambda card: card.index)


def select(found: Sequence[Card], selector: str) -> Card:
    """Return the card with an index, a uuid, or the unique beginning of a uuid."""
    if selector.isdecimal():
        matches = [card for card in found if card.index == int(selector)]
    else:
        matches = [card for card in found if selector and card.uuid.startswith(selector)]
        matches = [card for card in matches if card.uuid == selector] or matches
    if len(matches) == 1:
        return matches[0]
    known = ", ".join(f"{card.index} ({card.uuid})" for card in found) or "none"
    word = "more than one card" if matches else "no card"
    raise GpuError(f"{word} is called {selector!r}; in sight: {known}")


def pick(found: Sequence[Card], selectors: str) -> list[Card]:
    """Return the cards that a list such as `0,2` names, by index or uuid."""
    chosen: list[Card] = []
    for selector in selectors.split(","):
        card = select(found, selector.strip())
        if card in chosen:
            raise GpuError(f"card {selector.strip()} is named twice")
        chosen.append(card)
    return chosen


def find(selector: str) -> Card:
    """Return the card in sight with an index, a uuid, or the unique beginning of a uuid."""
    return select(cards(), selector)


def pin(*chosen: Card) -> dict[str, str]:
    """Return the environment that shows a process these cards and no other.

    An integer wherever possible: several frameworks fail on uuids, which only MIG slices need.
    """
    ids = ",".join(card.visible_id for card in chosen)
    pinned = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ids,
        "POSTROOM_GPU": ",".join(card.uuid for card in chosen),
    }
    if any(card.kind == "amd" for card in chosen):
        # One of the two only: ROCR renumbers the cards before HIP counts them.
        pinned = {"HIP_VISIBLE_DEVICES": ids, "POSTROOM_GPU": pinned["POSTROOM_GPU"]}
    return pinned
