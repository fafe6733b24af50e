"""The full screen: what is on it at each size, and that it lets the terminal go."""

from __future__ import annotations

import os
import pty
import sys
from dataclasses import replace

import pytest

from postroom.cli.top import SMALL_LINES, Line, act, screen, sections
from postroom.cli.top_keys import TopState
from postroom.queue.queue_view import QueueView
from postroom.queue.rows import AgentView, CardView, Overview
from postroom.store.base import Base
from postroom.testing import wait_until
from tests.queue.kit import FAILURE, end, queue


def busy(base: Base, view: QueueView) -> Overview:
    jobs = queue(base, *[f"python train.py --seed {n} " + "x" * 150 for n in range(40)])
    for job in jobs[:12]:
        end(base, job, FAILURE if job.number % 2 else None)
    seen = view.overview()
    running = [replace(row, state="running", agent="0", seconds=3.0) for row in seen.queued[:2]]
    cards = [
        CardView(
            f"u{n}", n, "NVIDIA A100-SXM4-80GB", 81920, 4096 * n, 20 * n, 60, 250.0, "", [], ""
        )
        for n in range(4)
    ]
    cards[1] = replace(cards[1], agents=["0"])
    cards[2] = replace(cards[2], problem="the driver has lost it")
    agent = AgentView("0", "running", "u1", "A100", 1, 0.0, running[0].short, False, 3)
    return replace(seen, running=running, cards=cards, agents=[agent], master_pid=7)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (60, 15), (40, 10), (20, 3)])
def test_a_screen_is_never_larger_than_the_terminal(
    base: Base, view: QueueView, width: int, height: int
) -> None:
    lines = screen(busy(base, view), width, height)
    assert len(lines) <= height
    assert all(sum(len(text) for text, _ in line) <= width for line in lines)


def test_a_screen_shows_cards_jobs_and_failures(base: Base, view: QueueView) -> None:
    seen = busy(base, view)
    text = "\n".join("".join(part for part, _ in line) for line in screen(seen, 100, 40))
    for shown in (
        "scheduler running (pid 7)",
        "28 queued",
        "A100",
        "the driver has lost it",
        "RUNNING  2",
    ):
        assert shown in text
    assert "NEXT" in text and "FAILED  6" in text and "ENDED" in text
    assert "░" in text and "█" in text
    assert seen.running[0].short in text


def text_of(lines: list[Line]) -> list[str]:
    return ["".join(part for part, _ in line) for line in lines]


def test_a_small_screen_shows_gpus_jobs_what_is_selected_and_the_keys(
    base: Base, view: QueueView
) -> None:
    seen = busy(base, view)
    chosen = seen.queued[15]
    lines = screen(seen, 60, 15, state=TopState(selected=chosen.id))
    text = text_of(lines)
    assert len(text) == 15 and all(text) and text[-1].endswith("q quit")
    assert text[2].startswith(" 0") and "80G" in text[2] and "and 2 more GPUs" in text[4]
    marked = [line for line, parts in zip(text, lines, strict=True) if ("reverse" in str(parts))]
    assert len(marked) == 1 and marked[0].startswith(chosen.short)  # it is scrolled into view
    for state, foot in (
        (TopState(typing=True, filter="lr 0.1"), "show only: lr 0.1▏"),
        (TopState(selected=chosen.id, confirm="kill"), f"kill {chosen.short}? press y"),
        (TopState(message="it is held"), "it is held"),
    ):
        assert text_of(screen(seen, 60, 15, state=state))[-1] == foot
    nothing = text_of(screen(seen, 60, 15, state=TopState(filter="zebra"), found=[]))
    assert nothing[-1] == "NOTHING matches 'zebra'; Esc: all"
    # No line is lost to the title of a list that has no room.
    assert all(all(text_of(screen(seen, 60, height))) for height in range(10, SMALL_LINES))


def test_what_is_asked_with_a_key_is_done_or_its_reason_is_shown(
    base: Base, view: QueueView
) -> None:
    waits, ended = queue(base, "first job", "second job")
    end(base, ended)
    assert act(view, "hold", str(waits)).startswith(f"job {waits.short} held until released")
    assert "already ended" in act(view, "kill", str(ended))
    assert act(view, "kill", "20200101-000000-abcdef/7")
    held = replace(view.jobs().jobs[0], state="held")
    assert ("LATER", [held], 1) in sections(
        replace(view.overview(), counts={"held": 1}), later=[held]
    )


def test_q_leaves_the_screen_and_restores_the_terminal(base: Base) -> None:
    queue(base, "first job")
    pid, fd = pty.fork()
    if pid == 0:
        os.environ |= {"POSTROOM_BASE": base.root, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        os.execv(sys.executable, [sys.executable, "-m", "postroom", "top"])
    shown = bytearray()

    def drawn() -> bool:
        shown.extend(os.read(fd, 65536))
        return b"first job" in shown and b"NO SCHEDULER RUNNING" in shown

    wait_until(drawn)
    os.write(fd, b"q")
    try:
        while chunk := os.read(fd, 65536):
            shown.extend(chunk)
    except OSError:  # how Linux says that the other end has gone
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(fd)
    assert shown.rfind(b"\x1b[?1049l") > shown.rfind(b"\x1b[?1049h") >= 0
