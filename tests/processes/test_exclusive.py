"""A job that asks for it has its card alone, although sessions share the card."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from postroom import Job
from postroom.testing import RealSessions

KINDS = ("exclusive", "ordinary")


def test_an_exclusive_job_never_overlaps_another_on_its_card(
    sessions: RealSessions, tmp_path: Path
) -> None:
    for agent_id in ("0", "0b", "0c"):
        sessions.start(agent_id, gpu="0")
    log = tmp_path / "log"
    jobs = [
        Job("kernels:occupy", log=str(log), kind=kind, card="0").options(
            exclusive=kind == "exclusive"
        )
        for kind in KINDS * 25
    ]
    with sessions.master() as master:
        assert master.run(jobs).failures() == []
    rows = [line.split() for line in log.read_text().splitlines()]
    assert len(rows) == len(jobs)
    spans = [(kind, float(began), float(ended)) for _, kind, began, ended in rows]
    overlaps = [
        (one[0], other[0])
        for one, other in combinations(spans, 2)
        if one[1] < other[2] and other[1] < one[2]
    ]
    assert [pair for pair in overlaps if "exclusive" in pair] == []


def test_ordinary_jobs_share_a_card_at_the_same_time(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start("0", gpu="0")
    sessions.start("0b", gpu="0")
    folder = str(tmp_path)
    jobs = [
        Job("kernels:meet", folder=folder, me="a", other="b"),
        Job("kernels:meet", folder=folder, me="b", other="a"),
    ]
    with sessions.master() as master:
        assert master.run(jobs).failures() == []


def test_an_exclusive_job_does_not_wait_for_other_cards(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start("0", gpu="0")
    sessions.start("1", gpu="1")
    folder = str(tmp_path)
    jobs = [
        Job("kernels:meet", folder=folder, me="a", other="b").options(exclusive=True),
        Job("kernels:meet", folder=folder, me="b", other="a").options(exclusive=True),
    ]
    with sessions.master() as master:
        assert master.run(jobs).failures() == []


def test_the_death_of_a_worker_gives_the_card_back(sessions: RealSessions, tmp_path: Path) -> None:
    sessions.start("0", gpu="0")
    sessions.start("0b", gpu="0")
    log = str(tmp_path / "log")
    jobs = [
        Job("kernels:die", log=log, until=3).options(exclusive=True),
        *(Job("kernels:double", x=n) for n in range(20)),
    ]
    with sessions.master() as master:
        assert master.run(jobs).results() == ["survived", *(n * 2 for n in range(20))]
