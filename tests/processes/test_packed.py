"""`postroom run --memory`: commands beside each other on simulated cards, as far as they fit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.commands.job_folder import JobFolder
from postroom.gpus.ledger.protocol import open_ledger
from postroom.gpus.memory.profiles import Profiles
from postroom.testing import wait_until

from .test_commands import Bench

# Takes so many GB of its card, until it has been seen there by its meter, or its file is gone.
FIT = f"""#!{sys.executable}
import os, sys, time
from pathlib import Path
from postroom.gpus.cards.simulated import Claim, OutOfMemory
try:
    with Claim(os.environ["POSTROOM_GPU"], int(float(sys.argv[1]) * 1024)):
        if len(sys.argv) > 2:
            Path(sys.argv[2]).write_text(str(os.getpid()))
            while Path(sys.argv[2]).exists():
                time.sleep(0.01)
        else:
            time.sleep(0.3)
except OutOfMemory as error:
    sys.exit(f"CUDA out of memory: {{error}}")
"""


class Packed(Bench):
    """A bench whose lines share cards."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "fit.py").write_text(FIT)
        (folder / "fit.py").chmod(0o755)

    def infos(self, field: str) -> list[str]:
        """What INFO says of every job, in their order."""
        jobs = self.having("INFO")
        return [JobFolder(str(self.output / job)).read_info().get(field, "") for job in jobs]

    def attempts(self, job: str) -> list[str]:
        """The cards on which a job was tried."""
        tried = sorted((self.output / job / "attempts").glob("*/INFO"))
        paths = [*tried, self.output / job / "INFO"]
        return [JobFolder(str(path.parent)).read_info()["gpu"] for path in paths]

    def learned(self) -> list[int | None]:
        """The peaks of all that was learned."""
        return [row.peak_mib for profile in Profiles().all() for row in profile.rows]


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packed]:
    (tmp_path / "cards").mkdir()
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path / "cards"))
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x24G")
    opened = Packed(tmp_path)
    yield opened
    opened.close()
    assert open_ledger().holders() == []


def test_the_first_of_a_kind_is_measured_alone_and_the_others_share_the_card(
    packed: Packed,
) -> None:
    done = packed.run(packed.jobs(*["./fit.py 7"] * 4), "--memory", "auto", gpus="")
    assert done.returncode == 0, done.stderr
    assert packed.having("SUCCESS") == ["job_1", "job_2", "job_3", "job_4"]
    assert packed.infos("reserved") == ["the whole card", *["7360 MiB"] * 3]
    assert set(packed.infos("memory")) == {"peak 7.0 of 24 GB: three fit on one card"}
    assert "peak 7.0 of 24 GB: three fit on one card" in done.stderr
    timeline = (packed.output / "job_1" / "timeline.csv").read_text().splitlines()
    assert timeline[0] == "seconds,memory_mib,utilisation"
    assert any(",7168," in row for row in timeline)
    assert packed.learned() == [7168]


def test_three_run_at_once_where_three_fit_and_a_fourth_waits(packed: Packed) -> None:
    process = packed.start(
        *(word for number in range(4) for word in ("-c", f"./fit.py 7 at{number}")),
        *("--memory", "7G"),
        gpus="",
    )
    wait_until(lambda: len(list(packed.folder.glob("at*"))) == 3, folder=packed.folder)
    assert len(open_ledger().holders()) == 3
    for number in range(4):
        wait_until(lambda n=number: (packed.folder / f"at{n}").exists(), folder=packed.folder)
        (packed.folder / f"at{number}").unlink()
    assert process.wait(60) == 0


def test_a_killed_first_run_lets_the_next_of_its_kind_measure(packed: Packed) -> None:
    lines = ["-c", "./fit.py 5 at", "-c", "./fit.py 5 at"]
    process = packed.start(*lines, "--memory", "auto", gpus="")
    at = packed.folder / "at"
    wait_until(lambda: at.exists() and at.read_text(), folder=packed.folder)
    killed = at.read_text()
    os.kill(int(killed), signal.SIGKILL)
    wait_until(lambda: at.read_text() not in ("", killed), folder=packed.folder)
    at.unlink()
    assert process.wait(60) == 1
    assert packed.infos("reserved") == ["the whole card", "the whole card"]
    assert sorted(packed.infos("outcome")) == ["killed from outside", "ok"]


def test_what_no_card_can_hold_is_an_error_at_once(packed: Packed) -> None:
    done = packed.run("-c", "echo never", "--memory", "30G", gpus="")
    assert done.returncode == 2
    assert "needs 30G of GPU memory, but the largest GPU, 0, has only 24G" in done.stderr
    assert packed.having("INFO") == []


def test_a_job_that_ran_out_alone_goes_to_a_larger_card(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x24G,1x48G")
    small, large = "GPU 0 Simulated", "GPU 1 Simulated"
    done = packed.run("-c", "./fit.py 30", "--memory", "auto", "--retries", "5", gpus="")
    assert done.returncode == 0, done.stderr
    assert packed.attempts("job_1") == [small, large]
    # No card has as much: each was tried once, and five retries change nothing.
    done = packed.run("-c", "./fit.py 60", "--memory", "auto", "--retries", "5", gpus="")
    assert done.returncode == 1
    assert packed.attempts("job_2") == [small, large]
    # The next one of the kind is not even begun.
    done = packed.run("-c", "./fit.py 60", "--memory", "auto", gpus="")
    assert "known to run out of memory with 48G, and the largest card has 48G" in done.stderr


def test_slots_with_whole_cards_hand_it_to_a_larger_one_too(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x24G,1x48G")
    small, large = packed.folder / "at-FAKE-0", packed.folder / "at-FAKE-1"
    lines = packed.jobs(*["./fit.py 20 at-$POSTROOM_GPU"] * 2, "./fit.py 30")
    process = packed.start(lines, "--retries", "5", gpus="0,1")
    wait_until(lambda: small.exists() and large.exists(), folder=packed.folder)
    small.unlink()
    wait_until(lambda: packed.having("FAILURE") == ["job_3"], folder=packed.folder)
    # It waits until it has the larger card alone: beside the other it would not fit.
    large.unlink()
    assert process.wait(60) == 0
    assert packed.attempts("job_3") == ["GPU 0 Simulated", "GPU 1 Simulated"]


def test_the_line_s_own_memory_beats_that_of_the_batch(packed: Packed) -> None:
    (packed.folder / "feed.py").write_text(
        "def yielder():\n"
        "    yield {'command': './fit.py 3', 'memory': '4G'}\n"
        "    yield './fit.py 2'\n"
    )
    done = packed.run("--yielder", "feed.py", "--memory", "2G", gpus="")
    assert done.returncode == 0, done.stderr
    assert packed.infos("reserved") == ["4608 MiB", "2560 MiB"]


def test_the_most_urgent_of_the_lines_that_wait_is_next(packed: Packed) -> None:
    (packed.folder / "feed.py").write_text(
        "def yielder():\n"
        "    yield {'command': 'until [ -e go ]; do sleep 0.01; done', 'priority': 1}\n"
        "    for priority in (0, 3, 2, 3):\n"
        "        yield {'command': f'echo {priority} >> order', 'priority': priority}\n"
        "    open('go', 'w')\n"
    )
    done = packed.run("--yielder", "feed.py", gpus="0")
    assert done.returncode == 0, done.stderr
    assert (packed.folder / "order").read_text().split() == ["3", "3", "2", "0"]


def test_cuda_visible_devices_says_which_cards_are_shared(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "3x24G")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    done = packed.run("-c", "echo $POSTROOM_GPU", "-c", "exit 7", "--memory", "auto", gpus="")
    assert done.returncode == 1
    assert packed.read("job_1") == "FAKE-2\n"
    assert packed.infos("exit") == ["0", "7"]
