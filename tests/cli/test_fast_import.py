"""Imports without garbage collection."""

from __future__ import annotations

import gc

import pytest

from postroom.cli.fast_import import importing


def test_garbage_collection_is_off_inside_and_on_again_afterwards() -> None:
    with pytest.raises(ValueError), importing():
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()
    gc.unfreeze()
