"""Tests that need a control group say so; at home they are skipped where none can be had."""

from __future__ import annotations

import os
import uuid

import pytest

from postroom.system import cgroups

_made = cgroups.make("tests")
if _made:
    os.rmdir(_made)

needs_groups = pytest.mark.skipif(
    not _made, reason="no cgroup v2 tree in which this user may make a group"
)


class MemoryGroup:
    """A control group that may use 200 MB."""

    def __init__(self) -> None:
        v1 = cgroups.own("memory")
        self.path = f"{v1 or cgroups.own()}/postroom-test-{uuid.uuid4().hex[:12]}"
        self.procs = f"{self.path}/cgroup.procs"
        os.mkdir(self.path)
        limits = {"memory.limit_in_bytes": 200 << 20} if v1 else {"memory.max": 200 << 20}
        try:
            for name, value in (limits if v1 else {**limits, "memory.swap.max": 0}).items():
                with open(f"{self.path}/{name}", "w") as file:
                    file.write(str(value))
        except OSError:
            self.remove()
            raise

    def add(self, pid: int) -> None:
        with open(self.procs, "w") as file:
            file.write(str(pid))

    def remove(self) -> None:
        os.rmdir(self.path)
