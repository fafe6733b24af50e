"""A base of its own for each test, and a View of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.base import Base, create_base
from postroom.queue.view import View


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


@pytest.fixture
def view(base: Base) -> Iterator[View]:
    with View(base) as opened:
        yield opened
