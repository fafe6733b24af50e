"""`@postroom.job` in one process, on simulated cards."""

from __future__ import annotations

import inspect
import os
import pickle
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.errors import GpuError, PostroomError
from postroom.functions.function_kind import type_of
from postroom.functions.in_process import MemoryExceeded
from postroom.gpus.cards import simulated
from postroom.gpus.cards.simulated import Claim, OutOfMemory
from postroom.gpus.devices import scripted_device as devices
from postroom.gpus.devices.scripted_device import OutOfMemoryError, ScriptedDevice
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.gpus.memory import packing
from postroom.gpus.memory.booking import UNSEEN_RUNS
from postroom.gpus.memory.profiles import Profiles
from postroom.testing import scripted_device, wait_until


@pytest.fixture(autouse=True)
def _cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cards").mkdir()
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path / "cards"))
    monkeypatch.setenv("POSTROOM_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setattr("postroom.functions.in_process._last_card", "")


@postroom.job
def at_the_top(x: int) -> int:
    return x


def use(memory_mib: int) -> Claim:
    """Take memory of the card that was granted, and have it seen."""
    claim = Claim(os.environ["POSTROOM_GPU"], memory_mib)
    try:
        seen_by_the_meter(memory_mib)
    except BaseException:  # it is told off as soon as it is seen
        claim.close()
        raise
    return claim


def seen_by_the_meter(memory_mib: int) -> None:
    meter = next(t for t in threading.enumerate() if t.name == "postroom meter")
    owner: Any = meter._target.__self__  # type: ignore[attr-defined]
    wait_until(lambda: owner.peak_mib >= memory_mib, what="the meter seeing the memory")


def peaks(function: Any) -> list[int | None]:
    name = function.options.type or type_of(function)
    return [row.peak_mib for row in Profiles().get(name).rows]


def held() -> list[int | None]:
    return [entry.memory_mib for entry in open_ledger().holders()]


def test_the_function_stays_a_function() -> None:
    @postroom.job(memory="6G")
    def train(x: int, *, batch: int = 4) -> int:
        """Train it."""
        return x * batch

    assert train(3) == 12
    assert train(3, batch=2) == 6
    assert train.__name__ == "train"
    assert train.__doc__ == "Train it."
    assert str(inspect.signature(train)) == "(x: 'int', *, batch: 'int' = 4) -> 'int'"
    with pytest.raises(TypeError, match="unexpected keyword"):
        train(3, bach=2)  # type: ignore[call-arg]


def test_it_runs_on_a_granted_card_and_lets_go_of_everything() -> None:
    @postroom.job
    def train() -> tuple[str, list[int | None]]:
        with use(1000):
            return os.environ["CUDA_VISIBLE_DEVICES"], held()

    visible, during = train()
    assert visible == "0"
    assert during == [None]  # alone: nobody knew what it needs
    assert held() == []
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert train()[1] != [None]  # now its kind is known


def test_the_second_run_reserves_what_the_first_one_used() -> None:
    @postroom.job
    def train() -> list[int | None]:
        with use(6000):
            return held()

    assert train() == [None]
    assert peaks(train) == [6000]
    (reserved,) = train()
    assert reserved is not None
    assert 6000 < reserved < 6300


def test_a_measuring_job_that_stopped_growing_gives_back_what_it_does_not_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "SETTLE_S", 0.05)

    @postroom.job
    def train() -> int:
        with use(6000):
            (reserved,) = wait_until(lambda: held() != [None] and held(), what="giving back")
            assert peaks(train) == [6000]  # others of its kind may go on
            return reserved

    assert 6000 < train() < 6300


def test_a_job_that_was_not_seen_to_use_memory_is_not_taken_for_small_at_once() -> None:
    @postroom.job
    def train() -> list[int | None]:
        return held()

    assert [train() for _ in range(4)] == [[None], [None], [None], [576]]


@pytest.mark.parametrize(
    "shown", [{"pids": "elsewhere"}, {"pids": "none"}, {"memory": "unknown"}], ids=str
)
def test_where_the_driver_does_not_say_who_uses_what_no_job_is_taken_for_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: dict[str, Any]
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "24G")
    simulated.script(str(tmp_path / "cards"), {"FAKE-0": shown})

    @postroom.job
    def alone() -> None:
        use(3000).close()

    @postroom.job(memory="2G")
    def beside() -> None: ...

    alone()
    assert peaks(alone) == [3000], "alone on its card, the card's own use tells"
    with Claim("FAKE-0", 6000):  # a neighbour
        for _ in range(UNSEEN_RUNS):
            beside()
    assert peaks(beside) == [None]


def test_it_travels_by_name_as_functions_do() -> None:
    assert pickle.loads(pickle.dumps(at_the_top)) is at_the_top


def test_the_card_is_given_back_after_the_cache_was_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_that_time: list[list[int | None]] = []
    device = types.SimpleNamespace(empty_cache=lambda: at_that_time.append(held()))
    monkeypatch.setattr("postroom.gpus.memory.booking.device_in_use", lambda: device)

    @postroom.job(memory="1G")
    def train() -> None: ...

    train()
    assert at_that_time == [[1536]]


def test_its_errors_are_its_own_and_free_the_card() -> None:
    @postroom.job
    def train(x: int) -> None:
        raise ValueError("of the user's own making")

    for _ in range(2):
        with pytest.raises(ValueError, match="own making"):
            train(1)
        assert held() == []
    assert peaks(train) == [None]  # it said nothing about what the kind needs


def test_running_out_of_memory_teaches_and_the_retry_has_a_card_of_its_own() -> None:
    seen: list[int | None] = []

    @postroom.job(memory="2G", retries=1)
    def train() -> int:
        seen.extend(held())
        if len(seen) == 1:
            raise OutOfMemory("simulated CUDA out of memory")
        with use(9000):
            return 42

    assert train() == 42
    assert seen == [2048 + 512, None]
    assert peaks(train) == [9000]


def test_a_request_larger_than_any_card_is_an_error_at_once() -> None:
    @postroom.job(memory="30G")
    def train() -> None:
        raise AssertionError("it must not run")

    with pytest.raises(GpuError, match="the largest has 24576 MiB"):
        train()


def test_a_job_that_filled_the_largest_card_is_refused_from_then_on() -> None:
    @postroom.job
    def train() -> None:
        raise OutOfMemory("simulated CUDA out of memory")

    with pytest.raises(OutOfMemory):
        train()
    with pytest.raises(GpuError, match="the largest card"):
        train()


def test_the_stand_in_alone_is_measured_and_then_never_run_again() -> None:
    calls: list[str] = []

    @postroom.job
    def train(x: int) -> int:
        calls.append("full")
        with use(100):
            return x

    @train.profile
    def light(x: int) -> None:
        calls.append("light")
        assert held() == [None]
        with use(5000):
            pass

    assert train(1) == 1
    assert calls == ["light", "full"]
    assert train(1) == 1
    assert calls == ["light", "full", "full"]
    assert peaks(train) == [5000]


def test_a_stand_in_is_run_once_even_if_nothing_was_seen_of_it() -> None:
    calls: list[str] = []

    @postroom.job
    def train() -> list[int | None]:
        return held()

    @train.profile
    def light() -> None:
        calls.append("light")

    assert train() == [576]
    assert calls == ["light"]


def test_an_error_of_the_stand_in_is_told_and_holds_nothing() -> None:
    @postroom.job
    def train() -> None: ...

    @train.profile
    def light() -> None:
        raise ValueError("light")

    with pytest.raises(ValueError, match="light"):
        train()
    assert held() == []


def test_a_call_inside_another_is_part_of_it() -> None:
    @postroom.job
    def inner() -> list[int | None]:
        return held()

    @postroom.job
    def outer() -> list[int | None]:
        return inner()

    assert outer() == [None]


def test_threads_of_one_process_take_turns() -> None:
    at_once: list[int] = []
    running = 0

    @postroom.job
    def train(seed: int) -> int:
        nonlocal running
        running += 1
        at_once.append(running)
        with use(1000):
            running -= 1
        return seed

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(train, range(8))) == list(range(8))
    assert set(at_once) == {1}


def test_a_process_that_has_cuda_up_keeps_to_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    @postroom.job(memory="1G")
    def train() -> str:
        return os.environ["POSTROOM_GPU"]

    with Claim("FAKE-2", 500):
        assert train() == "FAKE-2"
        with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-0",))):
            pass


def test_cuda_on_cards_unknown_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch: Any = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 2)
    torch.get_device_module = lambda kind: torch.cuda
    torch.device = lambda kind, number: (kind, number)
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)

    @postroom.job(memory="1G")
    def train() -> None: ...

    with pytest.raises(PostroomError, match=r"\.submit"):
        train()


@pytest.mark.parametrize("shown", ["elsewhere", "none"])
def test_a_process_that_the_driver_does_not_show_keeps_to_the_card_of_its_last_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    """In a container. The second call must neither raise nor go to another card."""
    simulated.script(str(tmp_path / "cards"), {f"FAKE-{n}": {"pids": shown} for n in range(4)})
    gpus = []

    @postroom.job(memory="1G")
    def job() -> None:
        gpus.append(os.environ["POSTROOM_GPU"])

    job()
    monkeypatch.setattr(
        "postroom.functions.in_process.device_in_use", lambda: ScriptedDevice(["FAKE-0"])
    )
    job()
    job()
    assert len(set(gpus)) == 1


def test_torch_is_limited_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_DEVICE", "1")
    card = scripted_device()
    card.touch()

    @postroom.job(memory="6G", over="limit")
    def train(mib: int) -> int:
        card.hold(mib)
        return mib

    try:
        assert train(6000) == 6000
        with pytest.raises(OutOfMemoryError):
            train(7000)
    finally:
        card.close()
        devices.opened = None


def outgrow(said: Callable[[], str]) -> str:
    """Claim far more than was reserved, and go on until told."""
    with use(9000):
        return wait_until(said, what="being told")


def test_a_job_that_outgrows_its_reservation_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def told() -> str:
        said.append(capsys.readouterr().err)
        return next((text for text in said if "are reserved" in text), "")

    @postroom.job(memory="2G")
    def train() -> str:
        return outgrow(told)

    assert "uses 9000 MiB of GPU 0, but only 2560 MiB are reserved" in train()
    assert peaks(train) == [9000]  # raised: the next one reserves more


def test_or_stopped() -> None:
    @postroom.job(memory="2G", over="kill")
    def train() -> str:
        return outgrow(lambda: "")

    with pytest.raises(MemoryExceeded):
        train()
    assert held() == []
    assert open_ledger().queue() == []


def test_a_time_limit_is_raised_in_the_function() -> None:
    @postroom.job(timeout_s=0.05)
    def train() -> None:
        wait_until(lambda: False, what="anything")

    with pytest.raises(TimeoutError):
        train()


def test_in_a_session_what_is_short_and_known_is_not_measured_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @postroom.job
    def train() -> bool:
        return any(thread.name == "postroom meter" for thread in threading.enumerate())

    assert [train() for _ in range(4)] == [True] * 4
    monkeypatch.setenv("POSTROOM_SESSION", "a session")
    assert not train()


def test_methods_work_and_self_is_no_part_of_the_kind() -> None:
    class Trainer:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @postroom.job
        def train(self, x: int) -> int:
            """Train."""
            return self.factor * x

        @staticmethod
        @postroom.job
        def still(x: int) -> int:
            return x

    assert Trainer(3).train(2) == 6
    assert Trainer(4).train(2) == 8
    assert Trainer.still(5) == 5
    (row,) = Profiles().get(type_of(Trainer.train)).rows
    assert row.runs == 2
    assert row.call == {"x": 2}


def test_a_timeline_is_left() -> None:
    @postroom.job
    def train() -> None:
        with use(3000):
            pass

    train()
    (path,) = (Path(os.environ["POSTROOM_PROFILES"]) / "timelines").iterdir()
    head, *rows = path.read_text().splitlines()
    assert head == "seconds,memory_mib,utilisation"
    assert max(int(row.split(",")[1]) for row in rows) == 3000


def test_with_no_card_it_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "")

    @postroom.job
    def train() -> int:
        return 7

    assert train() == 7


@pytest.mark.parametrize("options", [{"policy": "best"}, {"over": "shout"}, {"memory": "much"}])
def test_wrong_options_are_said_where_they_are_written(options: dict[str, Any]) -> None:
    with pytest.raises(PostroomError):
        postroom.job(**options)


def test_a_coroutine_is_refused() -> None:
    with pytest.raises(PostroomError, match="plain function"):

        @postroom.job
        async def train() -> None: ...
