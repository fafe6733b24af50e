"""The storm's user of the standing queue: submits commands, a few at a time, without end.

`python -m benchmarks.chaos.submitter BASE STATE`: a line in STATE.queued names each job, once it is
accepted. Every command writes its token into STATE.ran.
"""

from __future__ import annotations

import os
import random
import sys
import time

from postroom.commands.spec import CommandSpec
from postroom.queue.submission import submit
from postroom.store.base import create_base
from postroom.store.files import LocalFiles

# A long pause lets a run end, so that a cleaner removes it just when the next job comes.
PAUSES_S = (0.0, 0.1, 0.2, 0.3, 3.0)


def main() -> None:
    """Submit until killed."""
    folder, state = sys.argv[1], sys.argv[2]
    base, files = create_base(folder), LocalFiles()
    queued = os.open(f"{state}.queued", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        tokens = [os.urandom(4).hex() for _ in range(random.randint(1, 3))]
        specs = [CommandSpec(f"echo {token} >> {state}.ran", cwd="/") for token in tokens]
        jobs = submit(files, base, specs, project=random.choice(("one", "two")))
        lines = [f"{job.run} {job.number} {t}\n" for job, t in zip(jobs, tokens, strict=True)]
        os.write(queued, "".join(lines).encode())
        time.sleep(random.choice(PAUSES_S))


if __name__ == "__main__":
    main()
