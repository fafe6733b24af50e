"""A plugin for pytest: leaves out tests by a part of their id."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--left-out", action="append", default=[])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = config.getoption("--left-out")
    gone = [item for item in items if any(part in item.nodeid for part in out)]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in gone]
