"""A command's use of a GPU: its reservation, and what it measured.

A session that holds a GPU lets its commands use it, and measures those that run longer than a
moment. A session that shares GPUs holds none: each of its commands books a part of one, and waits
for it in the ledger's waiting list (`gpus.memory.booking`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import GpuError
from ..store.agents import list_agents, read_agent_info
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.scheduling import will_do
from .attempt import CommandAttempt

if TYPE_CHECKING:
    from ..gpus.cards.inventory import Card
    from ..gpus.memory.booking import Booking, Need


class GpuUse:
    """The GPU memory of one command."""

    def __init__(self, base: Base, attempt: CommandAttempt, cards: str) -> None:
        self._base = base
        self._attempt = attempt
        self._uuids = cards.split(",") if cards else []  # of its session
        self._booking: Booking | None = None
        self.hopeless = False  # no GPU here has enough memory: a retry would fail, too
        self.exceeded = ""  # how it uses more than is reserved for it
        self.environment: dict[str, str] = {}
        self.facts: dict[str, object] = {}  # for INFO, when it begins

    def book(self, *, shares: bool, wanted: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Wait for a part of a GPU, or for a larger GPU than the session's, where needed.

        `say` is told once why it waits.

        Raises CardHeld when it is not wanted any more, GpuError when no GPU is large enough.
        """
        if not shares and not self._attempt.elsewhere:
            return
        from ..gpus.ledger.protocol import LeaseRequest, open_ledger
        from ..gpus.memory.booking import Booking, book
        from ..gpus.memory.profiles import Profiles

        ledger, need = open_ledger(), self._need()
        if shares:
            require = self._attempt.spec.scheduling.require
            cards = [
                card
                for card in self._cards(self._uuids)
                if will_do(require, card.name, card.memory_mib)
            ]
            self._booking = book(
                need, ledger=ledger, profiles=Profiles(), cards=cards, wanted=wanted, say=say
            )
        else:
            cards = self._cards([self._attempt.elsewhere])
            request = LeaseRequest(
                cards=tuple(card.uuid for card in cards),
                name=need.name + need.where,
                group=self._base.root,
            )
            lease = ledger.acquire(request, cards=cards, wanted=wanted)
            self._booking = Booking(need, cards, profiles=Profiles(), lease=lease)
        card = self._booking.cards[0]
        reserved_mib = self._booking.reserved_mib
        self.environment = self._booking.environment
        if self._attempt.spec.over == "limit" and reserved_mib is not None:
            self.environment |= limiting_environment(reserved_mib, card.memory_mib)
        self._booking.exceeded = self._note_excess
        self.facts = {
            "gpu": f"GPU {card.index} {card.name}",
            "reserved": "the whole card" if reserved_mib is None else f"{reserved_mib} MiB",
        }
        self._booking.watch()

    def _note_excess(self, text: str) -> None:
        self.exceeded = text

    def look(self) -> None:
        """Begin to measure a command that has run for a moment."""
        if self._booking is None and self._uuids:
            with contextlib.suppress(GpuError, OSError):
                self._measure().watch()

    def _measure(self) -> Booking:
        from ..gpus.memory.booking import Booking
        from ..gpus.memory.profiles import Profiles

        cards = self._cards(self._uuids)
        self._booking = Booking(self._need(), cards, profiles=Profiles())
        return self._booking

    def finish(self, *, ok: bool, out_of_memory: bool, timeline: str) -> dict[str, object]:
        """Learn from how it ended, give the memory back, and return facts for INFO."""
        if out_of_memory and self._booking is None and self._uuids:
            with contextlib.suppress(GpuError, OSError):
                self._measure()
        booking = self._booking
        if booking is None:
            return {}
        alone = out_of_memory and self._has_card_alone()
        booking.finish(ok=ok, out_of_memory=out_of_memory, alone=alone)
        booking.leave_timeline(timeline)
        if out_of_memory:
            with contextlib.suppress(GpuError, OSError):
                self.hopeless = not self._fitting()
        return {"memory": booking.needed} if booking.needed else {}

    def _has_card_alone(self) -> bool:
        """Whether no other session of the base has the same GPU."""
        held = _cards_of_sessions(self._base)
        return all(sum(uuid in uuids for uuids in held) <= 1 for uuid in self._uuids)

    def _fitting(self) -> list[Card]:
        """The GPUs of the base's sessions on which the command is not known to run out."""
        return fitting_cards(self._base, self._attempt.spec.command, self._folder())

    def _folder(self) -> str:
        """Where the files of the command are: in its snapshot, as soon as that is unpacked."""
        cwd = self._attempt.cwd
        return cwd if os.path.isdir(cwd) else self._attempt.spec.cwd

    def close(self) -> None:
        """Give the memory back, whatever has happened."""
        if self._booking is not None:
            self._booking.close()

    def _need(self) -> Need:
        from ..gpus.memory.booking import Need
        from ..gpus.memory.command_kind import kind_of_command

        spec = self._attempt.spec
        return Need(
            kind_of_command(spec.command, folder=self._folder()),
            spec.memory_mib,
            pack=True,
            name=self._attempt.name,
            where=place_of(self._base),
            card=spec.card,
            lasts_s=spec.scheduling.lasts_s or None,
        )

    def _cards(self, uuids: list[str]) -> list[Card]:
        from ..gpus.cards import inventory

        return [card for card in inventory.cards() if card.uuid in uuids]


def limiting_environment(reserved_mib: int, card_mib: int) -> dict[str, str]:
    """Return what has torch, JAX and CuPy use no more of a card than is reserved.

    Each of them counts without its CUDA context.
    """
    from ..gpus.memory.packing import CONTEXT_MIB

    own_mib = max(1, reserved_mib - CONTEXT_MIB)
    part = f"{min(1.0, own_mib / card_mib):.4f}"
    known = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return {
        "PYTORCH_CUDA_ALLOC_CONF": ",".join(
            filter(None, (known, f"per_process_memory_fraction:{part}"))
        ),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": part,
        "CUPY_GPU_MEMORY_LIMIT": str(own_mib << 20),
    }


def place_of(base: Base) -> str:
    """The end of a command's name in the ledger: where it comes from."""
    return f" of {base.root.removesuffix('/.base')}"


def fitting_cards(base: Base, command: str, folder: str) -> list[Card]:
    """List the GPUs of a base's sessions with more memory than a command ran out of."""
    from ..gpus.cards import inventory
    from ..gpus.memory.command_kind import kind_of_command
    from ..gpus.memory.profiles import Profiles

    uuids = {uuid for held in _cards_of_sessions(base) for uuid in held}
    at_least_mib = Profiles().learned(kind_of_command(command, folder=folder)).at_least_mib
    cards = [card for card in inventory.cards() if card.uuid in uuids]
    return [card for card in cards if card.memory_mib > at_least_mib]


def _cards_of_sessions(base: Base) -> list[list[str]]:
    """The GPUs of each session of a base, by their uuids."""
    files = LocalFiles()
    found = [read_agent_info(files, base, agent) for agent in list_agents(files, base)]
    return [info.gpu.split(",") for info in found if info is not None]
