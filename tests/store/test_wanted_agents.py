"""Which agents a base wants: what is written, and what a file that cannot be read says."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.errors import BadFileError
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.store.wanted_agents import WantedAgents, is_unwanted, read_wanted, write_wanted

FILES = LocalFiles()


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


def test_what_is_wanted_comes_back(base: Base) -> None:
    assert read_wanted(FILES, base) is None
    write_wanted(FILES, base, WantedAgents({"0": "0", "0-1": "0,1"}))
    found = read_wanted(FILES, base)
    assert found is not None and found.living == {"0": "0", "0-1": "0,1"}
    write_wanted(FILES, base, WantedAgents({"0": "0"}, up=False))
    found = read_wanted(FILES, base)
    assert found is not None and found.living == {}


def test_only_a_file_that_can_be_read_says_that_an_agent_is_not_wanted(base: Base) -> None:
    assert not is_unwanted(FILES, base, "0")  # nobody has said anything
    write_wanted(FILES, base, WantedAgents({"0": "0"}))
    assert not is_unwanted(FILES, base, "0") and is_unwanted(FILES, base, "1")
    write_wanted(FILES, base, WantedAgents({"0": "0"}, up=False))
    assert is_unwanted(FILES, base, "0")
    for content in ("{", '{"version": 9}', '{"version": 1, "agents": {"../x": "0"}}'):
        Path(base.wanted_agents).write_text(content)
        assert not is_unwanted(FILES, base, "0")
    with pytest.raises(BadFileError):
        read_wanted(FILES, base)
