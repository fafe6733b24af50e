"""Tables of pandas, polars and pyarrow as Arrow streams; these packages are imported at need."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Parts: TypeAlias = dict[str, Any]

# Columns of Python objects that Arrow gives back as they were.
_SAFE_OBJECTS = {"string", "bytes", "boolean", "date", "decimal", "empty"}


def pandas_parts(frame: Any) -> Parts:
    """The stream of a pandas frame, and what Arrow would not keep of it."""
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError(
            f"is a pandas {type(frame).__name__}, and travels through Arrow, which is missing here"
            f" ({error}): pip install 'postroom[frames]', or send its columns as arrays"
        ) from None
    pandas = sys.modules["pandas"]
    kind = pandas.api.types.infer_dtype
    labels = frame.columns
    if kind(labels) not in ("string", "integer", "empty") and labels.nlevels == 1:
        raise ValueError("is a frame whose columns have names of mixed types: make them all text")
    objects = [at for at, dtype in enumerate(frame.dtypes) if str(dtype) == "object"]
    for at in objects:
        found = kind(frame.iloc[:, at], skipna=True)
        if found not in _SAFE_OBJECTS:
            raise ValueError(
                f"has a column {labels[at]!r} of Python objects ({found}): give it a dtype of its"
                " own, with .astype, or send it apart"
            )
    attrs = dict(frame.attrs)
    if attrs:
        frame = frame.copy(deep=False)
        frame.attrs = {}
    try:
        table = pyarrow.Table.from_pandas(frame, nthreads=1)
        stream = arrow_parts(table)
    except Exception as error:  # Arrow has errors of its own
        raise ValueError(f"is a frame that Arrow cannot hold: {_one_line(error)}") from None
    freq = getattr(getattr(frame.index, "freq", None), "freqstr", None)
    return {**stream, "objects": objects, "freq": freq, "attrs": attrs}


def pandas_frame(frame_class: Any, parts: Parts) -> Any:
    """The frame of these parts, with memory of its own."""
    # Arrow's own memory is read-only: a copy can be changed.
    frame = arrow_table(None, parts).to_pandas(use_threads=False).copy()
    for at in parts["objects"]:
        frame = frame.astype({frame.columns[at]: object})
    if parts["freq"] is not None and getattr(frame.index, "freq", "") is None:
        frame.index.freq = parts["freq"]
    frame.attrs = parts["attrs"]
    return frame


def pandas_series_parts(series: Any) -> Parts:
    """The parts of a frame with one column, and the series' name."""
    return {**pandas_parts(series.to_frame("values")), "name": series.name}


def pandas_series(series_class: Any, parts: Parts) -> Any:
    """The series of these parts."""
    return pandas_frame(None, parts)["values"].rename(parts["name"])


def polars_parts(frame: Any) -> Parts:
    """The stream of a polars frame."""
    for name, dtype in frame.schema.items():
        if "Object" in str(dtype):  # polars would write their addresses
            raise ValueError(f"has a column {name!r} of Python objects: give it a dtype of its own")
    try:
        data = frame.write_ipc_stream(None).getvalue()
    except Exception as error:  # polars has errors of its own
        raise ValueError(f"is a frame that Arrow cannot hold: {_one_line(error)}") from None
    return {"arrow": np.frombuffer(data, np.uint8)}


def polars_frame(frame_class: Any, parts: Parts) -> Any:
    """The frame of these parts."""
    return sys.modules["polars"].read_ipc_stream(parts["arrow"].tobytes())


def polars_series_parts(series: Any) -> Parts:
    """The parts of a frame with one column, and the series' name."""
    return {**polars_parts(series.alias("values").to_frame()), "name": series.name}


def polars_series(series_class: Any, parts: Parts) -> Any:
    """The series of these parts."""
    return polars_frame(None, parts)["values"].alias(parts["name"])


def arrow_parts(table: Any) -> Parts:
    """The stream of a table of pyarrow."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return {"arrow": np.frombuffer(sink.getvalue(), np.uint8)}


def arrow_table(table_class: Any, parts: Parts) -> Any:
    """The table of these parts; its columns lie in the parcel's memory."""
    import pyarrow

    return pyarrow.ipc.open_stream(pyarrow.py_buffer(parts["arrow"])).read_all()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
