"""When a session gives its GPU back, and how it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.session.rest import REST_S, WANTED_S, IdleWatch, RestFile, rest_s
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.store.mailbox import InHand

FILES = LocalFiles()


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


def test_a_bell_hears_a_call_until_it_is_taken_down(base: Base) -> None:
    FILES.create_box(base.rest("0")).write(b"come")  # of a session that was killed
    rest_file = RestFile(FILES, base, "0")
    rest_file.put_up()
    assert not rest_file.is_called() and not rest_file.is_gone()
    master = FILES.open_box(base.rest("0"))
    assert master is not None
    master.write(b"come")
    assert rest_file.is_called()
    master.clear()
    assert not rest_file.is_called()
    rest_file.take_down()
    assert master.gone() and not rest_file.is_called()
    rest_file.put_up()
    FILES.remove(base.rest("0"))
    assert rest_file.is_gone()


def test_a_session_rests_only_after_a_while_without_a_letter_and_without_a_job() -> None:
    idle = IdleWatch(30.0)
    nothing, one = InHand("idle"), InHand("idle", "1.1", 0, done=1)
    assert not idle.is_over(0.0, nothing, letter=False)
    assert not idle.is_over(29.0, nothing, letter=False)
    assert idle.is_over(30.0, nothing, letter=False)
    assert not idle.is_over(31.0, nothing, letter=True)  # a letter has come
    assert not idle.is_over(50.0, one, letter=False)  # and was done since
    assert not idle.is_over(79.0, one, letter=False)
    assert idle.is_over(80.0, one, letter=False)
    idle.begin()
    assert not idle.is_over(200.0, one, letter=False)  # a new worker has its own time
    assert not IdleWatch(None).is_over(1e9, one, letter=False)
    # If somebody else waits for the GPU, it goes soon.
    assert not idle.is_over(200.0 + WANTED_S / 2, one, letter=False, wanted=True)
    assert idle.is_over(200.0 + WANTED_S, one, letter=False, wanted=True)
    assert not IdleWatch(None).is_over(1e9, one, letter=False, wanted=True)


def test_how_long_it_waits_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROOM_REST", raising=False)
    assert rest_s() == REST_S
    monkeypatch.setenv("POSTROOM_REST", "10m")
    assert rest_s() == 600
    monkeypatch.setenv("POSTROOM_REST", "never")
    assert rest_s() is None
    monkeypatch.setenv("POSTROOM_REST", "soon")
    with pytest.raises(PostroomError, match="POSTROOM_REST='soon': write 30s, 10m, or never"):
        rest_s()
