"""The lines of the benchmark: what is measured, against whom, and what is to be reached."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

US = "Postroom"
FLOOR = "floor: "
IDEAL = "busy all the time"
COLD = "python network.py"

# What one measurement brings: by line, by system, a value.
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Sizes:
    """How much is measured: enough for a figure to trust, or for a first look."""

    rounds: int
    calls: int  # round trips, one after another
    jobs: int  # small jobs in one go
    large: int  # jobs with an argument of 64 MB
    sharers: int  # jobs that share 64 MB
    queued: int  # the long queue; the short one is 1,000
    idle_s: float
    cold: int  # processes that import torch for one job each
    shell: int  # shell lines
    synced: int  # files written and synced one by one
    drained: int  # commands in a standing queue
    stream: int  # jobs of 10 ms with arguments of 16 MB; five times as many of 1 MB
    memory: int = 0  # bytes of memory to touch before


FULL = Sizes(5, 500, 2000, 10, 200, 100_000, 20.0, 100, 500, 300, 2000, 200, 8 << 30)
QUICK = Sizes(2, 100, 1000, 3, 200, 10_000, 4.0, 2, 200, 100, 500, 50, 2 << 30)


@dataclass(frozen=True)
class Line:
    """One line. The score says how many times better than the reference we are."""

    name: str
    title: str
    unit: str
    higher_is_better: bool = False
    reference: str = "best"  # a system's name, or the best of all others
    target: float = 1.0  # the score to reach; 0: it is only told

    def score(self, ours: float, theirs: float) -> float:
        """Above 1: we are better, by that factor."""
        return ours / theirs if self.higher_is_better else theirs / ours


LINES = (
    Line("round trip", "one small job, there and back", "ms", reference="ProcessPoolExecutor"),
    Line(
        "run one", "the same, by `Master.run`", "ms", reference="ProcessPoolExecutor", target=2 / 3
    ),
    Line("one by one", "small jobs, submitted one by one", "jobs/s", True, target=2.0),
    Line("one list", "small jobs, submitted in one list", "jobs/s", True, "ProcessPoolExecutor"),
    Line("large", "64 MB argument, one job", "ms", reference="Ray actors", target=1 / 1.2),
    Line("large result", "64 MB result, one job", "ms", reference="Ray actors", target=1 / 1.2),
    Line("ideal 16", "16 MB and 10 ms each, against the ideal", "%", True, IDEAL, 0.85),
    Line("ideal 4", "the same, with results of 4 MB", "%", True, IDEAL, 0.75),
    Line("ideal 1", "1 MB and 10 ms each, against the ideal", "%", True, IDEAL, 0.92),
    Line("stream 16", "16 MB and 10 ms each: workers busy", "%", True, "Ray actors"),
    Line("stream 4", "the same, with results of 4 MB", "%", True, "Ray actors"),
    Line("stream 1", "1 MB and 10 ms each: workers busy", "%", True, "Ray actors"),
    Line("shared", "64 MB shared by many jobs, each", "ms", reference="Ray tasks", target=3.0),
    Line("growth", "cost of a job, long queue", "µs", reference="1,000 queued", target=1 / 1.2),
    Line("growth submit", "submit into a long queue, each", "µs", reference="1,000 queued"),
    Line("growth start", "start a Master on it, each job", "µs", reference="1,000 queued"),
    Line("growth list", "list it, each job", "µs", reference="1,000 queued"),
    Line("growth memory", "Master's memory per queued job", "bytes", reference="limit 2 KB"),
    Line(
        "stream disk",
        "disk of 1,000 jobs of 16 MB from a generator",
        "MiB",
        reference="limit 1 GiB",
    ),
    Line("flow memory", "Master's memory per job, after 10,000", "bytes", reference="limit 64 B"),
    Line("flow descriptors", "descriptors that 190,000 jobs leave", "", reference="limit 16"),
    Line("flow files", "files that they leave", "", reference="limit 16"),
    Line("idle", "CPU while nothing happens", "% of a core", reference="limit 0.5 %"),
    Line("warm", "a torch kernel, warm against cold", "ms", reference=COLD, target=0),
    Line("durable", "durable, in one list", "jobs/s", True, "write+fsync loop", 0.5),
    Line("durable 1", "durable, one by one", "jobs/s", True, "write+fsync loop", 0.5),
    Line("shell", "shell lines (true)", "lines/s", True, target=0),
    Line(
        "submit", "`postroom submit` in a shell loop", "ms", reference="python -c pass", target=0.4
    ),
    Line("drain", "queued commands (true), two agents", "jobs/s", True, target=0),
    Line("gpu get", "start of `postroom gpu get`", "ms", reference="python -c pass", target=0.2),
)


@dataclass
class Results:
    """The samples of every line and system, and who could not run, and why."""

    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, figures: Figures) -> None:
        """Take in what one measurement brought."""
        for line, by_system in figures.items():
            for system, value in by_system.items():
                self.samples.setdefault(line, {}).setdefault(system, []).append(value)

    def medians(self, line: Line) -> dict[str, float]:
        """The median of each system that was measured, best first."""
        found = self.samples.get(line.name, {})
        medians = {system: statistics.median(values) for system, values in found.items()}
        ordered = sorted(medians, key=medians.__getitem__, reverse=line.higher_is_better)
        return {system: medians[system] for system in ordered}

    def reference(self, line: Line) -> tuple[str, float] | None:
        """Whom a line compares us with; None when there is nobody."""
        medians = self.medians(line)
        if line.reference != "best":
            value = medians.get(line.reference)
            return None if value is None else (line.reference, value)
        return next(((name, v) for name, v in medians.items() if is_peer(name)), None)

    def score(self, line: Line) -> float | None:
        """How many times better than the reference we are; None when it cannot be said."""
        ours, reference = self.medians(line).get(US), self.reference(line)
        if ours is None or reference is None:
            return None
        return line.score(ours, reference[1])


def is_peer(system: str) -> bool:
    """Whether a name in a line is neither ours nor a measured floor's."""
    return not system.startswith((US, FLOOR))
