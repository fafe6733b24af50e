"""`postroom wait`: outcomes and exit codes."""

from __future__ import annotations

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
