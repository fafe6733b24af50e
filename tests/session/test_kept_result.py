"""A result that cannot travel is kept aside, and its error says where."""

from __future__ import annotations

import ast
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from postroom.jobs import Job, JobPool
from postroom.parcel import container
from tests.in_one_process import in_one_process

KERNELS = """
import threading
from collections import deque

def hours(n):
    return {"loss": n, "history": deque([n])}

def strange(n):
    return {"loss": n, "parts": [n, threading.Lock()], "call": lambda: n}

class Mean:
    def __init__(self, n):
        self.n, self.lock = n, threading.Lock()
    def __repr__(self):
        raise RuntimeError

def mean(n):
    return Mean(n)

def good(n):
    return n
"""


def kept(pool: JobPool, number: int) -> Any:
    """Does what the error says."""
    message = str(pool[number].error)
    path = re.search(r"pickle\.load\(open\(('.*?'), 'rb'\)\)", message)
    assert path is not None, message
    where = Path(ast.literal_eval(path[1]))
    assert where.stat().st_mode & 0o077 == 0
    return pickle.loads(where.read_bytes())


def test_a_result_that_cannot_travel_is_kept_and_later_jobs_go_on(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        tasks = ["good", "hours", "good", "hours", "good"]
        pool = room.run(
            [Job(f"kernels:{task}", n=n).options(retries=2) for n, task in enumerate(tasks)]
        )
        assert pool.results(return_exceptions=True)[::2] == [0, 2, 4]
        for number in (1, 3):
            message = str(pool[number].error)
            assert "PayloadError: result['history'] is of type deque: turn it into" in message
            assert ". The result is kept: read it with " in message
            assert kept(pool, number) == {
                "loss": number,
                "history": __import__("collections").deque([number]),
            }
        kept_files = [n for n in os.listdir(room.base.result_folder(pool.run)) if "pickle" in n]
        assert sorted(kept_files) == ["000000001.pickle", "000000003.pickle"]
        assert not room.files.names(room.base.attempts(pool.run))


def test_what_not_even_pickle_can_hold_is_text_beside_the_rest(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.run([Job("kernels:strange", n=7), Job("kernels:mean", n=8)])
        assert "What pickle can hold of the result is kept" in str(pool[0].error)
        rest = kept(pool, 0)
        assert (rest["loss"], rest["parts"][0]) == (7, 7)
        assert "lock" in rest["parts"][1]
        assert "lambda" in rest["call"]
        assert kept(pool, 1)["n"] == 8


def test_a_result_of_too_many_arrays_is_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import numpy as np\ndef many(n):\n    return [np.zeros(k) for k in range(n)]\n"
    with in_one_process(tmp_path, source) as room:
        monkeypatch.setattr(container, "MAX_MEMBERS", 5)
        pool = room.run([Job("kernels:many", n=9), Job("kernels:many", n=2)])
        assert "a parcel holds at most 5 arrays, and these are 10: stack them" in str(pool[0].error)
        assert len(kept(pool, 0)) == 9
        assert len(pool.results(return_exceptions=True)[1]) == 2


def test_on_a_full_disk_it_waits_in_memory_until_it_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        (inbox,) = room.inboxes
        move, full = inbox._files.move, [True, True]

        def refuses(source: str, target: str) -> None:
            if target.endswith(".pickle") and full:
                full.pop()
                raise OSError(28, "No space left on device")
            move(source, target)

        monkeypatch.setattr(inbox._files, "move", refuses)
        pool = room.run([Job("kernels:hours", n=1)])
        assert not full
        assert kept(pool, 0)["loss"] == 1
