"""`postroom wait`: outcomes and exit codes."""

from __future__ import annotations

from pathlib import Path

from postroom.jobs import Job
from postroom.master import Master
from postroom.store.base import Base
from tests.queue.kit import FAILURE, end, queue

from .kit import call


def test_wait_returns_how_it_went(base: Base) -> None:
    good, bad, never = queue(base, "good", "bad", "never")
    end(base, good)
    end(base, bad, FAILURE)
    assert call(base, "wait", good.short).stdout == f"{good.short} ok\n"
    assert "failed" in call(base, "wait", good.short, bad.short, code=1).stdout
    assert never.short in call(base, "wait", never.short, "--timeout", "0", code=124).stderr
    call(base, "wait", "-P", "p", "--timeout", "0", code=124)


def test_nobody_waits_for_jobs_whose_program_is_gone(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("def f():\n    return 1\n")
    with Master(tmp_path / "base", import_folder=str(tmp_path)) as master:
        run = master.start([Job("kernels:f")]).run
    assert call(master.base, "wait", f"{run}/0", code=1).stdout == f"{run[-6:]}/0 abandoned\n"
