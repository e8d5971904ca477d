"""Arrow batches as databases take them: CSV for PostgreSQL's COPY, Python values for SQLite. Deterministic.

Which type a column has is said by the staging table's schema, not by its Parquet files: Spark's old way to write
timestamps there has lost that they are instants.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.sql_types import family

if TYPE_CHECKING:
    import pyarrow as pa

_NESTED = ("struct", "array", "map")


def csv_of(batch: pa.RecordBatch, fields: Sequence[JsonDict]) -> bytes:
    """The batch as CSV: every value in quotes, NULL as nothing, so that an empty string is not NULL."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    columns = [_text(batch.column(field["name"]), field["type"]) for field in fields]
    text = pa.RecordBatch.from_arrays(columns, names=[str(n) for n in range(len(columns))])
    out = io.BytesIO()
    pacsv.write_csv(text, out, pacsv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return out.getvalue()


def _text(column: pa.Array, kind: Any) -> pa.Array:
    """A column as text that reads back as exactly the same value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    match family(kind):
        case "timestamp":
            instants = pc.cast(_instants(column), pa.timestamp("us"))
            return pc.binary_join_element_wise(pc.cast(instants, pa.string()), pa.scalar("+00"), "")
        case "timestamp_ntz":
            return pc.cast(pc.cast(column, pa.timestamp("us")), pa.string())
        case "float":  # by way of the double that is equal: its text is exact in columns of either type
            return pc.cast(pc.cast(column, pa.float64()), pa.string())
        case "binary":
            return pa.array([None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()], pa.string())
        case name if name in _NESTED:
            return pa.array(_json(column), pa.string())
        case _:
            return pc.cast(column, pa.string())


def _instants(column: pa.Array) -> pa.Array:
    """In UTC, to the microsecond."""
    import pyarrow as pa
    import pyarrow.compute as pc

    aware = column if column.type.tz else pc.assume_timezone(column, "UTC")
    return pc.cast(aware, pa.timestamp("us", "UTC"))


def tuples_of(batch: pa.RecordBatch, fields: Sequence[JsonDict]) -> Iterator[tuple[Any, ...]]:
    """The batch as rows of ``None``, ``int``, ``float``, ``str`` and ``bytes``."""
    columns = [_values(batch.column(field["name"]), field["type"]) for field in fields]
    return zip(*columns, strict=True)


def _values(column: pa.Array, kind: Any) -> list[Any]:
    if family(kind) in ("date", "timestamp", "timestamp_ntz", *_NESTED):
        return list(_text(column, kind).to_pylist())
    values: list[Any] = column.to_pylist()
    match family(kind):
        case "boolean":
            return [None if v is None else int(v) for v in values]
        case "decimal":  # without an exponent, as which Arrow writes small ones
            return [None if v is None else f"{v:f}" for v in values]
        case _:
            return values


def _json(column: pa.Array) -> list[str | None]:
    """Nested values as JSON: decimals as numbers, times as RFC 3339, binary as base64, NaN and infinity as null."""
    import msgspec

    encode = msgspec.json.Encoder(decimal_format="number").encode
    try:
        values = column.to_pylist(maps_as_pydicts="strict")
        return [None if value is None else encode(value).decode() for value in values]
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise Refused(
            f"Values of type {column.type} cannot be written as JSON: {error}",
            remedy="Let the transform return them in another form (keys of maps must be text, numbers or times), and "
            "clear the stage task.",
        ) from error
