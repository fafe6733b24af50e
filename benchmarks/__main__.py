"""Measure Postroom beside its peers: same machine, same run, same kernels, two workers.

examples:
  python -m benchmarks --quick                     two minutes
  python -m benchmarks --json bench.json --picture bench.svg
  python -m benchmarks --only postroom --only pool

Rounds are interleaved: in each of them every system is started, measured and stopped, alone and in
a process of its own, so that a slow moment of the machine falls on all. Medians are told. Ctrl-C
ends it early, with what was measured so far.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from .child import MEASUREMENTS
from .lines import FULL, QUICK, Results, Sizes
from .ours import PROJECT
from .picture import draw
from .report import as_json, table
from .scratch import place, touch_memory

# A system that takes longer than this for one round hangs.
PATIENCE_S = 600.0


def main() -> int:
    """Measure, and tell."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes = QUICK if options.quick else FULL
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    results = Results()
    names = options.only or list(MEASUREMENTS)
    started = time.monotonic()
    touch_memory(sizes.memory)
    try:
        with place():
            _measure(names, sizes, results)
    except KeyboardInterrupt:
        _say("stopped early: this is what was measured so far")
    _say(f"measured in {time.monotonic() - started:.0f} s")
    print(table(results))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(as_json(results, quick=options.quick))
    if options.picture:
        with open(options.picture, "w", encoding="utf-8") as file:
            file.write(draw(results))
    return 0


def _measure(names: list[str], sizes: Sizes, results: Results) -> None:
    for number in range(sizes.rounds):
        for name in names:
            if name not in results.missing and not (MEASUREMENTS[name].once and number):
                begun = time.monotonic()
                _take_in(name, _run(name, sizes), results)
                took = f"{time.monotonic() - begun:.0f} s"
                _say(f"round {number + 1} of {sizes.rounds}: {MEASUREMENTS[name].title}, {took}")


def _take_in(name: str, answer: dict[str, Any], results: Results) -> None:
    if "figures" in answer:
        results.add(answer["figures"])
    else:
        results.missing[name] = str(answer["reason"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="two minutes instead of twenty")
    parser.add_argument(
        "--only", action="append", choices=list(MEASUREMENTS), help="measure only this; repeatable"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="how often; 2 if quick, else 5")
    parser.add_argument("--json", metavar="FILE", help="write every sample")
    parser.add_argument("--picture", metavar="FILE", help="write the bars, as SVG")
    return parser.parse_args()


def _run(name: str, sizes: Sizes) -> dict[str, Any]:
    """One measurement in a process of its own; whatever it says but its last line is dropped."""
    command = [sys.executable, "-m", "benchmarks.child", name, json.dumps(asdict(sizes))]
    with subprocess.Popen(
        command,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            output, talk = child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return {"reason": f"it took longer than {PATIENCE_S:g} s"}
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)
            raise
    lines = output.strip().splitlines()
    if child.returncode or not lines:
        last = (talk.strip().splitlines() or ["it said nothing"])[-1]
        return {"reason": f"its process ended with code {child.returncode}: {last}"}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
