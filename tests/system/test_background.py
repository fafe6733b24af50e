from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from postroom.system.background import Background


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background(2, "postroom test")
    yield made
    made.close()


def test_work_is_done_by_other_threads(background: Background) -> None:
    both = threading.Barrier(2, timeout=60)

    def meet() -> str:
        both.wait()
        return threading.current_thread().name

    assert [one.result(60) for one in [background.begin(meet), background.begin(meet)]] == [
        "postroom test"
    ] * 2


def test_an_error_is_in_the_future(background: Background) -> None:
    with pytest.raises(ZeroDivisionError):
        background.begin(lambda: 1 // 0).result(60)
    assert background.begin(lambda: 5).result(60) == 5


@pytest.mark.parametrize("before", [0, 1])
def test_where_no_thread_can_start_work_is_done_once(
    background: Background, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    for _ in range(before):
        background.begin(lambda: None).result(60)
    monkeypatch.setattr("threading.Thread.start", no_thread)
    done: list[int] = []
    for number in range(3):
        background.begin(lambda n=number: done.append(n)).result(60)  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        background.begin(lambda: 1 // 0).result(60)
    background.close()
    assert done == [0, 1, 2]


def test_closing_waits_for_what_was_begun(background: Background) -> None:
    done: list[int] = []
    for number in range(20):
        background.begin(lambda n=number: done.append(n))  # type: ignore[misc]
    background.close()
    assert sorted(done) == list(range(20))
