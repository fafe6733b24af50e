"""Tests that need a control group say so; at home they are skipped where none can be had."""

from __future__ import annotations

import os

import pytest

from postroom.system import cgroups

_made = cgroups.make("tests")
if _made:
    os.rmdir(_made)

needs_groups = pytest.mark.skipif(
    not _made, reason="no cgroup v2 tree in which this user may make a group"
)
