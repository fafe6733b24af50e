from __future__ import annotations

import threading
from pathlib import Path

import pytest

from postroom.watch import Waiter


def test_a_new_watch_asks_for_another_look_before_it_waits(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    assert waiter.wait(0.0, lambda: False)
    assert not waiter.wait(0.0, lambda: False)
    waiter.close()


def test_a_new_file_ends_a_wait(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.wait(0.0, lambda: False)
    threading.Timer(0.05, lambda: (tmp_path / "new").touch()).start()
    assert waiter.wait(60.0, lambda: False)
    waiter.close()


def test_a_single_file_can_be_watched(tmp_path: Path) -> None:
    path = tmp_path / "0.POOL"
    path.touch()
    waiter = Waiter([str(path)])
    waiter.wait(0.0, lambda: False)
    threading.Timer(0.05, lambda: path.write_text("letter")).start()
    assert waiter.wait(60.0, lambda: False)
    waiter.close()


def test_a_wait_can_be_ended_from_another_thread(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.wait(0.0, lambda: False)
    threading.Timer(0.05, waiter.wake).start()
    assert waiter.wait(60.0, lambda: False)
    waiter.close()


def test_what_is_ready_is_not_waited_for(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.stir(float("inf"))
    assert not waiter.wait(60.0, lambda: True)


def test_without_events_looking_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No inotify left on the machine: slower, never deaf."""
    import watchdog.observers

    class Refused:
        def schedule(self, *_: object, **__: object) -> None:
            raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(watchdog.observers, "Observer", Refused)
    waiter = Waiter([str(tmp_path)])
    assert waiter.wait(60.0, lambda: False)
    assert waiter.wait(60.0, lambda: False)
