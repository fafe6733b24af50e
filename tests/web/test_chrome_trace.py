"""The history as a Chrome trace."""

from __future__ import annotations

import json
import time

from postroom.web.chrome_trace import trace

from .test_gantt import interval


def test_the_trace_is_what_a_browser_reads() -> None:
    now = time.time()
    made = trace([interval(now - 10, now - 5), interval(now - 3, None, gpu="b")])
    slices = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert slices[0]["dur"] == 5_000_000
    assert slices[0]["pid"] != slices[1]["pid"]
    assert 3_000_000 <= slices[1]["dur"] < 60_000_000
    names = {event["args"]["name"] for event in made["traceEvents"] if event["ph"] == "M"}
    assert names == {"a", "b", "agent 0"}
    json.dumps(made)
