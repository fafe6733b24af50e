"""The visible cards, real or simulated, in PCI order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...errors import GpuError

if TYPE_CHECKING:
    from .forked_probe import ForkedProbe
    from .nvml import NvmlProbe


class Usage(NamedTuple):
    """One process on a card."""

    pid: int
    user: str  # "?": there is no such process here: it is ending, or in another container
    command: str
    used_mib: int | None  # None: the driver does not tell
    compute: bool = True  # False: graphics only (a desktop)

    def describe(self) -> str:
        """Say whose process it is, and what it uses."""
        from ...text.sizes import from_mib

        used = "memory" if self.used_mib is None else from_mib(self.used_mib)
        if self.user == "?":
            return f"pid {self.pid} ({used}), which is ending or in another container"
        return f"user {self.user}, pid {self.pid} ({self.command}, {used})"


class Card(NamedTuple):
    """One GPU, or one MIG slice of a GPU; `index` is its number in PCI order.

    A value that the driver does not report is None. `problem` says why a card is sick or lost.
    `memory_mib` is what programs can use; what the driver keeps for itself comes on top.
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
    driver_mib: int = 0  # what the driver keeps for itself
    linked: tuple[str, ...] = ()  # the cards that NVLink joins with this one, if asked for
    by_uuid: bool = False  # its index may be another one for CUDA

    @property
    def visible_id(self) -> str:
        """Return its id in CUDA_VISIBLE_DEVICES: the index, or the uuid where that is not sure."""
        return self.uuid if self.kind == "mig" or self.by_uuid else str(self.index)

    @property
    def free_mib(self) -> int | None:
        """Return the memory that no process uses now."""
        return None if self.used_mib is None else self.memory_mib - self.used_mib

    @property
    def unexplained_mib(self) -> int:
        """Return the used memory that no process accounts for that we can see."""
        seen_mib = sum(usage.used_mib or 0 for usage in self.processes if usage.user != "?")
        return max(0, (self.used_mib or 0) - seen_mib)


def cards(*, links: bool = False) -> list[Card]:
    """List the visible cards in PCI order; an empty list if there are none.

    POSTROOM_FAKE_GPUS simulates cards; CUDA_VISIBLE_DEVICES hides some. Raises `GpuError` if a
    driver is installed but fails.
    """
    with CardWatch() as watch:
        return watch.cards(links=links)


class CardWatch:
    """Lists the cards repeatedly, through one child process that asks the driver.

    The child starts at once and gets ready in the background; `child` is one that was forked.
    """

    def __init__(self, child: ForkedProbe | None = None) -> None:
        self._probe = None if "POSTROOM_FAKE_GPUS" in os.environ else self._start(child)

    def _start(self, child: ForkedProbe | None = None) -> NvmlProbe:
        from . import nvml

        return nvml.NvmlProbe(child)

    def cards(self, *, links: bool = False) -> list[Card]:
        """List the visible cards as they are now; with `links` also which NVLink joins."""
        fake = os.environ.get("POSTROOM_FAKE_GPUS")
        if fake is not None:
            from . import simulated

            return visible(simulated.cards(fake), os.environ)
        self._probe = self._probe or self._start()
        try:
            found = self._probe.cards(links=links)
        except GpuError:
            self.close()  # the next call starts another child
            raise
        if not found:
            self.close()  # without a driver the child has exited
            from . import amd

            found = amd.cards()
        elif any(card.kind == "mig" or card.problem.startswith("lost") for card in found):
            # CUDA counts neither a card that is lost nor one in MIG mode as NVML does.
            found = [card._replace(by_uuid=True) for card in found]
        return visible(found, os.environ)

    def close(self) -> None:
        """End the child process that asks the driver."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def __enter__(self) -> CardWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def visible(found: Sequence[Card], environment: os._Environ[str] | dict[str, str]) -> list[Card]:
    """Return the cards that the environment makes visible, by the rules of CUDA and HIP."""
    names = ["CUDA_VISIBLE_DEVICES"]
    if any(card.kind == "amd" for card in found):
        names = ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
    ids = next((environment[name] for name in names if name in environment), None)
    if ids is None:
        return list(found)
    chosen: list[Card] = []
    for word in ids.split(","):
        try:
            card = select(found, word.strip())
        except GpuError:
            break  # as in CUDA: everything after an unknown id is hidden
        if card in chosen:
            return []  # as in CUDA: a repeated id hides everything
        chosen.append(card)
    return sorted(chosen, key=lambda card: card.index)


def select(found: Sequence[Card], selector: str) -> Card:
    """Return the card with an index, a uuid, or a unique prefix of a uuid."""
    if selector.isdecimal():
        matches = [card for card in found if card.index == int(selector)]
    else:
        matches = [card for card in found if selector and card.uuid.startswith(selector)]
        matches = [card for card in matches if card.uuid == selector] or matches
    if len(matches) == 1:
        return matches[0]
    known = ", ".join(f"{card.index} ({card.uuid})" for card in found) or "none"
    word = "more than one card" if matches else "no card"
    raise GpuError(f"{word} is called {selector!r}; visible: {known}")


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
    """Return the visible card with an index, a uuid, or a unique prefix of a uuid."""
    return select(cards(), selector)


def pin(*chosen: Card) -> dict[str, str]:
    """Return the environment variables that make only these cards visible to a process.

    Cards are named by index if possible, since several frameworks fail on uuids. Raises `GpuError`
    for several MIG slices: CUDA shows a process only the first of them.
    """
    if len(chosen) > 1 and any(card.kind == "mig" for card in chosen):
        names = ", ".join(card.uuid for card in chosen)
        raise GpuError(f"one process can use only one MIG slice, not {names}: ask for one of them")
    ids = ",".join(card.visible_id for card in chosen)
    pinned = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ids,
        "POSTROOM_GPU": ",".join(card.uuid for card in chosen),
    }
    if any(card.kind == "amd" for card in chosen):
        # Only one of the two variables: ROCR renumbers the cards before HIP counts them.
        pinned = {"HIP_VISIBLE_DEVICES": ids, "POSTROOM_GPU": pinned["POSTROOM_GPU"]}
    return pinned
