from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

import pytest

from postroom.store.files import LocalFiles
from postroom.system.file_events import (
    CROWDED_S,
    TRY_AGAIN_MOST_S,
    TRY_AGAIN_S,
    FolderWatcher,
    Waiter,
)
from postroom.testing import wait_until


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
    began = time.monotonic()
    assert not waiter.wait(60.0, lambda: False), "the content of a file is no reason to list"
    assert time.monotonic() - began < 30.0
    waiter.close()


def test_what_changed_while_nobody_waited_asks_for_a_look(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.wait(0.0, lambda: False)
    (tmp_path / "run").mkdir()
    assert waiter.wait(60.0, lambda: False)
    os.utime(tmp_path / "run")
    assert waiter.wait(60.0, lambda: False)
    assert not waiter.wait(0.0, lambda: False)
    waiter.close()


def test_a_file_that_changes_without_an_event_is_seen_while_things_move(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.wait(0.0, lambda: False)
    waiter.expect_more(float("inf"))
    asked = iter([False, False, True])
    assert not waiter.wait(60.0, lambda: next(asked))
    waiter.close()


def test_a_wait_can_be_ended_from_another_thread(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.wait(0.0, lambda: False)
    threading.Timer(0.05, waiter.wake).start()
    assert waiter.wait(60.0, lambda: False)
    waiter.close()


def test_a_folder_can_be_followed_for_a_while(tmp_path: Path) -> None:
    watched, followed = tmp_path / "watched", tmp_path / "followed"
    watched.mkdir()
    followed.mkdir()
    waiter = Waiter([str(watched)])
    waiter.wait(0.0, lambda: False)
    waiter.follow([str(followed)])
    (followed / "new").touch()
    assert waiter.wait(60.0, lambda: False)
    waiter.follow([])
    (followed / "newer").touch()
    waiter.wait(0.0, lambda: False)  # it is told that the watch has ended
    assert not waiter.wait(0.0, lambda: False)
    waiter.close()


def test_what_is_ready_is_not_waited_for(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.wait(0.0, lambda: False)
    assert not waiter.wait(60.0, lambda: True)
    waiter.close()


def test_without_events_looking_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No inotify left on the machine: slower, never deaf."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: NoInotify())
    waiter = Waiter([str(tmp_path)])
    assert waiter.wait(60.0, lambda: False)
    assert waiter.wait(60.0, lambda: False)
    assert waiter.blind
    waiter.close()


class NoInotify:
    """A machine whose limit of instances is reached."""

    def inotify_init1(self, flags: int) -> int:
        return -1

    def inotify_add_watch(self, fd: int, path: bytes, mask: int) -> int:
        return -1


def test_a_folder_watcher_sees_what_is_put_into_a_folder_that_came_later(tmp_path: Path) -> None:
    rung: list[str] = []
    with FolderWatcher(str(tmp_path), rung.append):
        (tmp_path / "run").mkdir()
        wait_until(lambda: "run" in rung)
        rung.clear()
        (tmp_path / "run" / "000000000.npz").touch()
        wait_until(lambda: "run" in rung)


def test_a_ring_ends_a_wait_and_is_known_by_its_name(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.wait(0.0, lambda: False)
    waiter.take_names()
    threading.Timer(0.05, waiter.notify, ["run"]).start()
    assert waiter.wait(60.0, lambda: False)
    assert waiter.take_names() == {"run"}
    waiter.close()


def test_a_look_at_a_lock_does_not_ring(tmp_path: Path) -> None:
    """The Master looks whether a run is wanted: if that woke it, it would never end."""
    (tmp_path / "run").mkdir()
    lock = str(tmp_path / "run" / "wanted.lock")
    files = LocalFiles()
    files.write_new(lock, [])
    rung: list[str] = []
    with FolderWatcher(str(tmp_path), rung.append):
        held = files.try_lock(lock, shared=True)
        assert held is not None
        held.release()
        (tmp_path / "last").mkdir()  # events come in order: behind this one there are no others
        wait_until(lambda: "last" in rung)
    assert set(rung) == {"last"}


def test_who_rests_hears_nothing_and_closes(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    waiter.wait(0.0, lambda: False)  # it watches from here on
    waiter.rest()
    waiter.wait(0.0, lambda: False)  # Linux says that a watch was removed
    (tmp_path / "new").touch()
    assert waiter.wait(0.0, lambda: False) is False
    waiter.close()


def test_who_has_to_wait_for_a_core_again_and_again_does_not_spin(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    told = tmp_path / "schedstat"
    moment_ns = int(CROWDED_S * 1e9)

    def wait_ns(queued_ns: int) -> None:
        told.write_text(f"123456789 {queued_ns} 3\n")

    os.close(waiter._schedule)
    wait_ns(moment_ns)
    waiter._schedule = os.open(told, os.O_RDONLY)
    assert not waiter._is_crowded(1.0)  # what was before it began does not count
    wait_ns(moment_ns + moment_ns // 100)
    assert not waiter._is_crowded(1.0 + CROWDED_S)  # somebody came by
    wait_ns(2 * moment_ns)
    assert not waiter._is_crowded(1.0 + 1.5 * CROWDED_S)  # too early to tell
    assert waiter._is_crowded(1.0 + 2 * CROWDED_S)
    now = 1.0 + 2 * CROWDED_S
    for tried in range(8):  # it tries again: soon, then later and later, if it is still crowded
        pause_s = min(TRY_AGAIN_S * 2**tried, TRY_AGAIN_MOST_S)
        # Meanwhile it sleeps: what its CPU takes to wake up counts as waiting, and is no reason.
        wait_ns((10 + 2 * tried) * moment_ns)
        assert waiter._is_crowded(now + 0.9 * pause_s)
        now += 1.1 * pause_s
        assert not waiter._is_crowded(now)
        wait_ns((11 + 2 * tried) * moment_ns)
        now += 1.5 * CROWDED_S
        assert waiter._is_crowded(now)
    now += 1.1 * TRY_AGAIN_MOST_S
    assert not waiter._is_crowded(now)
    assert not waiter._is_crowded(
        now + 1.5 * CROWDED_S
    )  # the others have ended: it goes on spinning
    assert waiter._try_s == TRY_AGAIN_S
    waiter.close()
    assert not waiter._is_crowded(99.0)


def test_a_waiter_that_nobody_closes_leaves_no_descriptors(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        Waiter([str(tmp_path)]).wait(0.0, lambda: True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_fork_closes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    child = os.fork()
    if not child:
        bell = waiter._wake_fd
        waiter.__del__()
        os._exit(waiter._wake_fd != bell)
    assert os.waitpid(child, 0)[1] == 0
    waiter.close()


def test_the_thread_that_waits_is_asked_how_long_it_waited_for_a_core(tmp_path: Path) -> None:
    waiter = Waiter([str(tmp_path)])
    asked: list[str] = []

    def wait() -> None:
        waiter._asked_at = 0.0
        assert not waiter._is_crowded(time.monotonic())
        path = os.readlink(f"/proc/self/fd/{waiter._schedule}")
        asked.append(f"{path.split('/')[-2]} {threading.get_native_id()}")

    wait()
    other = threading.Thread(target=wait)
    other.start()
    other.join()
    wait()  # again here: what it opened for the other thread ended with that
    waiter.close()
    assert asked[0] == asked[2] != asked[1]
    assert all(one.split()[0] == one.split()[1] for one in asked)
