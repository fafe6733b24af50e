"""Live updates: sent while a page is open, and not otherwise."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.queue.submission import submit
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.web import live_updates as module
from postroom.web.live_updates import MOST_BEHIND, Listener, LiveUpdates
from postroom.web.queue_reader import QueueReader


async def next_event(heard: object) -> tuple[str, dict[str, object]]:
    async with asyncio.timeout(30):
        while True:
            lines = (await anext(heard)).decode().splitlines()  # type: ignore[call-overload]
            if lines and lines[0].startswith("event: "):
                return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.02)


def test_updates_come_while_a_page_is_open_and_polling_stops_after(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")

    async def listen() -> None:
        reader = QueueReader(base)
        stream = LiveUpdates(reader)
        heard = stream.listen(Listener())
        other = stream.listen(Listener())
        assert (await next_event(heard))[0] == "cards"
        assert (await next_event(heard))[0] == "change"  # from nothing to what there is
        assert (await next_event(other))[0] in ("cards", "change")
        poller = stream._poller
        assert poller is not None
        submit(LocalFiles(), base, [CommandSpec("true", cwd="/")])
        while (event := await next_event(heard))[0] != "change":
            assert event[0] == "cards"
        await heard.aclose()  # type: ignore[attr-defined]
        assert stream._poller is poller  # one still listens
        await other.aclose()  # type: ignore[attr-defined]
        assert stream._poller is None
        await asyncio.wait([poller])
        assert poller.cancelled()
        reader.close()

    asyncio.run(listen())


def test_the_log_of_a_job_comes_as_it_grows(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    (job,) = submit(LocalFiles(), base, [CommandSpec("true", cwd="/")])
    folder = Path(base.job_folder(job.run, job.number))
    folder.mkdir(parents=True)
    log = folder / f"{job.number}.OUT"
    log.write_text("one\n")

    async def listen() -> list[str]:
        reader = QueueReader(base)
        heard = LiveUpdates(reader).listen(Listener(job=job))
        found = []
        while len(found) < 2:
            event, data = await next_event(heard)
            if event == "log":
                found.append(str(data["text"]))
                with log.open("a") as file:
                    file.write("two\x1b[0m\n")
        await heard.aclose()  # type: ignore[attr-defined]
        reader.close()
        return found

    assert asyncio.run(listen()) == ["one\n", "two\n"]


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), ZeroDivisionError("a bug")])
def test_an_open_page_is_told_of_trouble_and_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    base = create_base(tmp_path / "base")

    async def listen() -> tuple[str, str]:
        reader = QueueReader(base)
        heard = LiveUpdates(reader).listen(Listener())

        async def trouble() -> str:
            while (event := await next_event(heard))[0] != "trouble":
                pass
            return str(event[1]["text"])

        async def broken() -> None:
            raise fault

        with monkeypatch.context() as patch:
            patch.setattr(reader, "overview", broken)
            told = await trouble()
        while text := await trouble():
            assert text == told
        await heard.aclose()  # type: ignore[attr-defined]
        reader.close()
        return told, text

    told, ended = asyncio.run(listen())
    assert told == f"The base cannot be read: {fault}"
    assert ended == ""


def test_a_page_that_is_too_far_behind_is_disconnected() -> None:
    async def fall_behind() -> list[bytes | None]:
        listener = Listener()
        for number in range(MOST_BEHIND + 1):
            listener.send("change", number)
        return [listener.queue.get_nowait() for _ in range(MOST_BEHIND)]

    assert asyncio.run(fall_behind())[-1] is None
