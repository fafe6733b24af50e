from __future__ import annotations

import json

from postroom.parcel.failure_groups import described, group_failures, place_of
from postroom.parcel.sheets import Failure, Outcome


def failed(message: str, line: int, *, kind: str = "ValueError") -> Failure:
    traceback = f'Traceback:\n  File "/my/kernel.py", line {line}, in train\n    f()\n{kind}\n'
    return Failure(Outcome.FAILED, kind, message, traceback)


def test_equal_errors_are_one_line_with_their_place_in_the_kernel_the_most_frequent_first() -> None:
    failures = {n: failed(f"no file {n}.npy", 7) for n in (9, 3, 5)}
    failures[1] = failed("too large", 12)
    assert described(group_failures(failures), 10) == [
        "3 failed: ValueError: no file 3.npy (and 2 other texts) at /my/kernel.py:7 (jobs 3, 5, 9)",
        "1 failed: ValueError: too large at /my/kernel.py:12 (job 1)",
    ]
    assert described(group_failures(failures), 1)[-1] == "... and 1 with other errors"


def test_without_a_traceback_only_the_text_tells_errors_apart() -> None:
    lost = Failure(Outcome.LOST, "crashed", "SIGSEGV")
    other = Failure(Outcome.LOST, "crashed", "SIGKILL")
    assert [group.numbers for group in group_failures({0: lost, 1: other, 2: lost})] == [
        [0, 2],
        [1],
    ]


def test_an_outcome_is_said_once() -> None:
    killed = Failure(Outcome.CANCELLED, "cancelled", "killed by kill()")
    assert described(group_failures({4: killed}), 1) == ["1 cancelled: killed by kill() (job 4)"]


def test_the_place_is_the_innermost_line_of_the_user_not_of_a_library() -> None:
    frames = [
        ("/my/kernel.py", 3),
        ("/my/layers.py", 40),
        ("/x/lib/python3.11/site-packages/torch/nn.py", 99),
        (json.__file__, 5),
        ("<frozen importlib>", 1),
    ]
    text = "".join(f'  File "{path}", line {line}, in f\n    x\n' for path, line in frames)
    assert place_of(text) == "/my/layers.py:40"
    assert place_of(text.split("\n", 4)[-1]) == "<frozen importlib>:1"
    assert place_of("") == ""
