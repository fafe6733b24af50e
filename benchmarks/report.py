"""The table for people and the JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from .lines import LINES, US, Line, Results

PACKAGES = ("numpy", "loky", "joblib", "ray", "distributed", "executorlib", "hyperqueue", "torch")
MISSING = "—"


def table(results: Results) -> str:
    """Ours beside the reference, and then every figure that was measured."""
    rows = [("", "unit", US, "compared with", "", "ratio", "to reach", "")]
    for line in LINES:
        medians = results.medians(line)
        if not medians:
            continue
        reference, score = results.reference(line), results.score(line)
        rows.append(
            (
                line.title,
                line.unit,
                number(medians.get(US)),
                reference[0] if reference else MISSING,
                number(reference[1]) if reference else "",
                f"{score:.2f}x" if score is not None else MISSING,
                f"{line.target:.2f}x" if line.target else "",
                _verdict(line, score),
            )
        )
    parts = [_columns(rows)]
    for line in LINES:
        medians = results.medians(line)
        if len(medians) > 2 or (medians and US not in medians):
            listed = ", ".join(f"{name} {number(value)}" for name, value in medians.items())
            parts.append(f"{line.title} ({line.unit}): {listed}")
    parts += [f"not run: {name}: {reason}" for name, reason in results.missing.items()]
    return "\n".join(parts)


def as_json(results: Results, *, quick: bool) -> str:
    """Everything, with every single sample."""
    lines: dict[str, Any] = {}
    for line in LINES:
        reference = results.reference(line)
        lines[line.name] = {
            "title": line.title,
            "unit": line.unit,
            "higher_is_better": line.higher_is_better,
            "medians": results.medians(line),
            "samples": results.samples.get(line.name, {}),
            "reference": reference[0] if reference else None,
            "score": results.score(line),
            "target": line.target,
        }
    whole = {
        "version": 1,
        "quick": quick,
        "machine": machine(),
        "lines": lines,
        "missing": results.missing,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def machine() -> dict[str, str]:
    """What the figures depend on."""
    found = {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def number(value: float | None) -> str:
    """Three digits that mean something."""
    if value is None:
        return MISSING
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _verdict(line: Line, score: float | None) -> str:
    if score is None or not line.target:
        return ""
    return "reached" if score >= line.target else "not reached"


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    right = {2, 4, 5, 6}
    lines = [
        "  ".join(
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:], ""])


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for text in file:
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or sys.platform
