"""An attempt travels as one line, which begins with its word."""

from __future__ import annotations

from postroom.commands.attempt import ATTEMPT, CommandAttempt
from postroom.commands.spec import CommandSpec


def test_an_attempt_is_one_line_and_is_read_back() -> None:
    spec = CommandSpec("echo 1\necho 2", cwd="/", folder="/out/job_1", env={"A": "x\ny"}, retries=1)
    attempt = CommandAttempt(spec, "r", job=3, attempt=2, failed=1, elsewhere="GPU-2")
    line = attempt.encode()
    assert line.startswith(ATTEMPT)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert CommandAttempt.decode(line.rstrip(b"\n")) == attempt


def test_a_job_without_a_name_is_called_after_its_folder() -> None:
    spec = CommandSpec("true", folder="/out/job_1")
    assert CommandAttempt(spec, "r", 3, 1, 0).name == "job_1"
    assert CommandAttempt(spec.but(name="one"), "r", 3, 1, 0).name == "one"
    assert CommandAttempt(spec, "r", 3, 1, 0).job_name == "r/3"
