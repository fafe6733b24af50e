"""Run stories: `python -m tests.simulation 17` tells that of seed 17, `0-9999` those of a range.

With `--first` it stops at the first that ends badly.
"""

from __future__ import annotations

import sys
import time

from .world import tell


def main(arguments: list[str]) -> int:
    """Tell the stories of every seed and range that is named; 1 if one of them ended badly."""
    failed = told = operations = kills = power_losses = 0
    began = time.perf_counter()
    only_first = "--first" in arguments
    for argument in [a for a in arguments if a != "--first"] or ["0-999"]:
        first, _, last = argument.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            told += 1
            try:
                story = tell(seed)
            except Exception as error:
                if not last:
                    raise
                failed += 1
                what = str(error).splitlines()[0] if str(error) else ""
                print(f"python -m tests.simulation {seed}  # {type(error).__name__}: {what[:150]}")
                if only_first:
                    return 1
                continue
            operations += story.scheduler.operations
            kills += story.scheduler.kills
            power_losses += story.power_losses
    seconds = time.perf_counter() - began
    print(
        f"{told} seeds, {failed} failed; {operations} operations, {kills} processes killed, "
        f"{power_losses} power losses, {seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
