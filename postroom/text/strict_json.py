"""JSON that every program can read: it has no word for NaN and infinity, so they become null."""

from __future__ import annotations

import json
import math
from typing import Any


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """Write a value as JSON."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
