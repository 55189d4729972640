"""From the logs of a run to its tables.

JSON lines become Parquet at the end: a killed writer of Parquet leaves an unreadable file, and
lines do not.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Records = Sequence[dict[str, Any]]


def tables(metrics: Records, probes: Records, vectors: Records) -> Iterator[tuple[str, bytes]]:
    """Name and content of the Parquet files of a run with these records."""
    yield "scalars.parquet", _parquet(_scalars(metrics, probes))
    yield "vectors.parquet", _parquet(_measured(vectors, lambda v: np.asarray(v, np.float32)))


def _scalars(metrics: Records, probes: Records) -> dict[str, list]:
    columns = _empty()
    for record in metrics:
        step = record["step"]
        for stat, value in record.items():
            if stat != "step":
                _add(columns, step, "model", stat, value)
    for name, values in _measured(probes, lambda value: value).items():
        columns[name] += values
    return columns


def _measured(records: Records, of_value) -> dict[str, list]:
    columns = _empty()
    for record in records:
        for stat, values in record["values"].items():
            for tensor, value in values.items():
                _add(columns, record["step"], tensor, stat, of_value(value))
    return columns


def _empty() -> dict[str, list]:
    return {"step": [], "tensor": [], "stat": [], "value": []}


def _add(columns: dict[str, list], *row: Any) -> None:
    for name, item in zip(columns, row, strict=True):
        columns[name].append(item)


def _parquet(columns: dict[str, list]) -> bytes:
    import pandas as pd

    frame = pd.DataFrame(columns)
    frame["step"] = frame["step"].astype("int32")
    buffer = io.BytesIO()
    frame.to_parquet(buffer, compression="zstd", index=False)
    return buffer.getvalue()
