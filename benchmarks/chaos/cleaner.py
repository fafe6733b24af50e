"""The storm's cleaner: `python -m benchmarks.chaos.cleaner BASE MIRRORED` cleans without end.

It removes each run soon after its end, but only what was old when the harness last began to mirror
the base: the time stamp of the file MIRRORED. So everything that it removes can be audited.
"""

from __future__ import annotations

import os
import sys
import time

from postroom.queue import actions, cleaning
from postroom.queue.queue_view import QueueView
from postroom.store.base import create_base

PAUSE_S = 0.2
QUIET_S = 0.5


def main() -> None:
    """Clean until killed."""
    base, mirrored = sys.argv[1], sys.argv[2]
    cleaning.QUIET_S = QUIET_S  # a minute is long in a storm
    with QueueView(create_base(base)) as view:
        while True:
            age_s = max(QUIET_S, time.time() - os.stat(mirrored).st_mtime + QUIET_S)
            actions.clean(view, older_than_s=age_s)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
