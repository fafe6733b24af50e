"""A result that cannot travel is kept aside, for its owner to read; Postroom never loads it."""

from __future__ import annotations

import pickle
from typing import Any

from ..store.base import Base
from ..store.files import Files

_MOST_DEPTH = 8


def keep_result(
    files: Files, base: Base, run: str, job: int, value: Any, *, outbox: str, sync: bool = False
) -> str:
    """Write a value beside the results of its run; return the sentence that says where it is."""
    data, whole = _pickled(value)
    temporary = base.temporary(outbox)
    files.write_new(temporary, [data], sync=sync)
    path = base.kept_result(run, job)
    files.move(temporary, path)
    kept = "The result" if whole else "What pickle can hold of the result"
    return f"{kept} is kept: read it with pickle.load(open({path!r}, 'rb'))"


def _pickled(value: Any) -> tuple[bytes, bool]:
    """A pickle of the value; False: some of it is text instead."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL), True
    except Exception:  # pickling runs the value's own code
        return pickle.dumps(_rest(value, 0), pickle.HIGHEST_PROTOCOL), False


def _rest(value: Any, depth: int) -> Any:
    """The same value, with the text of what cannot be pickled in its place."""
    try:
        pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        return value
    except Exception:
        if depth < _MOST_DEPTH:
            if isinstance(value, dict):
                items = [
                    (_rest(key, depth + 1), _rest(one, depth + 1)) for key, one in value.items()
                ]
                return dict(items)
            if isinstance(value, (list, tuple, set)):
                return [_rest(one, depth + 1) for one in value]
            if isinstance(fields := getattr(value, "__dict__", None), dict) and fields:
                return {"type": str(type(value)), **_rest(fields, depth + 1)}
        return _text(value)


def _text(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"
