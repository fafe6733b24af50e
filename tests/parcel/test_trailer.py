"""The trailer: the last bytes of a parcel, which say what it holds."""

from __future__ import annotations

import itertools

import pytest

from postroom.errors import BadFileError
from postroom.parcel.container import Parcel
from postroom.parcel.trailer import TRAILER_SIZE, Trailer, read_trailer
from tests.parcel.test_container import build, flips


@pytest.mark.parametrize(
    "trailer",
    [
        Trailer("jobs", 0, 0),
        Trailer("data", 10**12 - 1, 10**7 - 1, "abcdefgh"),
        Trailer("results", 5, 1),
    ],
)
def test_a_trailer_is_read_from_the_tail_alone(trailer: Trailer) -> None:
    data = build(trailer=trailer)
    assert read_trailer("p.npz", data[-TRAILER_SIZE:]) == trailer
    assert read_trailer("p.npz", data[-TRAILER_SIZE - 50 :]) == trailer
    assert Parcel("p.npz", data).trailer == trailer


@pytest.mark.parametrize(
    "trailer",
    [
        Trailer("letters", 0, 0),
        Trailer("jobs", -1, 0),
        Trailer("jobs", 10**12, 0),
        Trailer("jobs", 0, 10**7),
        Trailer("jobs", 0, 0, "X"),
        Trailer("jobs", 0, 0, "abcdefghi"),
    ],
)
def test_a_trailer_that_does_not_fit_is_not_written(trailer: Trailer) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        build(trailer=trailer)


def test_every_flipped_bit_of_a_trailer_and_every_short_tail_is_refused() -> None:
    tail = build()[-TRAILER_SIZE:]
    for bad in itertools.chain(flips(tail), (tail[at:] for at in range(1, TRAILER_SIZE))):
        with pytest.raises(BadFileError):
            read_trailer("p.npz", bad)
