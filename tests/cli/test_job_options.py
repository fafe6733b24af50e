"""The options of verbs that work on the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.store.base import Base

from .kit import call


def test_a_base_that_is_not_there_is_made_by_submit_only(tmp_path: Path) -> None:
    missing = Base(tmp_path / "new")
    with pytest.raises(PostroomError, match="there is no queue at"):
        call(missing, "status")
    call(missing, "submit", "--dry-run", "--snapshot", "true")
    with pytest.raises(PostroomError, match="does not exist"):
        call(missing, "submit", "-C", "/nowhere", "true")
    assert not (tmp_path / "new").exists()
    assert call(missing, "submit", "true").stderr.startswith("created a new queue")
    assert "1 queued" in call(missing, "status").stdout
