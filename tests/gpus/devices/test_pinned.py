"""Pinned memory is bounded, and never written over while somebody looks at it."""

from __future__ import annotations

import numpy as np

from postroom.gpus.devices.pinned import LIMIT_BYTES, PinnedBuffer

MIB = 1 << 20


class Card:
    """Counts what is pinned; nothing is ever unpinned."""

    def __init__(self) -> None:
        self.pinned: list[int] = []

    def pin(self, nbytes: int) -> np.ndarray:
        self.pinned.append(nbytes)
        return np.empty(nbytes, np.uint8)


def test_memory_is_used_again_when_the_last_view_of_it_is_dropped() -> None:
    card = Card()
    buffer = PinnedBuffer(card.pin)
    first, second = buffer.copy(b"first"), buffer.copy(b"second")
    assert first is not None and bytes(first) == b"first" and first.readonly
    assert second is not None and bytes(second) == b"second"
    kept = np.frombuffer(first[1:3], np.uint8)  # as a kernel keeps an argument
    del first
    assert buffer.copy(b"third") is None, "both halves are in use"
    del second
    for _ in range(3):
        assert bytes(buffer.copy(b"fourth") or b"") == b"fourth"
    assert kept.tobytes() == b"ir"
    assert card.pinned == [MIB, MIB]


def test_what_is_pinned_is_bounded() -> None:
    card = Card()
    buffer = PinnedBuffer(card.pin)
    for size in (10, 3 * MIB, 5 * MIB, 2 * MIB, 3 * MIB):
        assert buffer.copy(bytes(size)) is not None
    assert card.pinned == [MIB, 4 * MIB, 8 * MIB]
    too_much = memoryview(np.empty(LIMIT_BYTES + 1, np.uint8))
    assert buffer.copy(too_much) is None
    assert card.pinned == [MIB, 4 * MIB, 8 * MIB]


def test_where_nothing_can_be_pinned_parcels_stay_in_their_files() -> None:
    assert PinnedBuffer(lambda _: None).copy(b"x") is None
