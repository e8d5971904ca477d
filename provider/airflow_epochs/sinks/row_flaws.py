"""Names the row that a destination cannot take: the record it came from, the column and the value.

A single bad record stops the pipeline. A person must then find it among millions, and tell the transform what to keep
out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.delta.schema import type_name

if TYPE_CHECKING:
    import pyarrow as pa

Check = Callable[["pa.Array"], "str | None"]
"""Describes what is wrong with a value of the column; None if nothing is."""

ORIGIN = ("topic", "partition", "offset")
_SHOWN_MAX = 80
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_US = 86_400_000_000
_CYCLE_DAYS = 146_097
"""400 years of the Gregorian calendar, in days."""
_RANGES = {
    "date": (_FIRST_DAY, _LAST_DAY),
    "timestamp": (_FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1),
    "timestamp_ntz": (_FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1),
}
"""The first day of year 1 and the last day of year 9999: in days, or in microseconds."""


def require_sound(
    batch: pa.RecordBatch, checks: Mapping[str, Check], keys: Sequence[str] = (), *, flat: bool = True
) -> None:
    """Raise Refused if a column fails its check. Names the row, as ``row_named`` does, the column and the value."""
    for name, check in checks.items():
        column = batch.column(name)
        if check(column) is None:
            continue
        for row in range(len(column)):
            if what := check(value := column.take([row])):
                raise refusal(f"{row_named(batch, row, keys, flat=flat)}: column {name!r} {what}: {_shown(value)}")


def refusal(why: str) -> Refused:
    """The error for a row that cannot be written."""
    return Refused(
        f"A row cannot be written: {why}.",
        code=codes.BAD_RECORD,
    )


def row_named(batch: pa.RecordBatch, row: int, keys: Sequence[str] = (), *, flat: bool = True) -> str:
    """The record that a row came from, if the row tells; else the row's keys, and how rows can tell their record.

    Args:
        batch: The row's batch.
        row: The row's number in the batch.
        keys: Columns that identify a row.
        flat: Whether columns ``topic``, ``partition`` and ``offset`` are the record's. In a struct they always are.
    """
    if (origin := _origin(batch, row, flat)) is not None:
        topic, partition, offset = origin
        return f"the record at topic {topic!r}, partition {partition}, offset {offset}"
    known = ", ".join(f"{key} = {_shown(batch.column(key).take([row]))}" for key in keys)
    lacking = "columns" if flat else "struct with"
    return (
        f"a row{' with ' + known if known else ''} (its record is unknown: the rows have no {lacking} topic, partition "
        "and offset)"
    )


def _origin(batch: pa.RecordBatch, row: int, flat: bool) -> tuple[Any, ...] | None:
    import pyarrow as pa

    names = {name.lower(): name for name in batch.schema.names}
    if flat and all(name in names for name in ORIGIN):
        return tuple(_plain(batch.column(names[name]).take([row])) for name in ORIGIN)
    for field in batch.schema:
        parts = {part.name.lower(): part.name for part in field.type} if pa.types.is_struct(field.type) else {}
        if all(name in parts for name in ORIGIN):
            found = batch.column(field.name).take([row]).flatten()
            ordered = dict(zip((part.name for part in field.type), found, strict=True))
            return tuple(_plain(ordered[parts[name]]) for name in ORIGIN)
    return None


def _plain(value: pa.Array) -> Any:
    try:
        return value.to_pylist()[0]
    except (ValueError, OverflowError):
        return _shown(value)


def _shown(value: pa.Array) -> str:
    """The only value of an array, for people, in few characters."""
    text = told(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def told(value: pa.Array | pa.ChunkedArray) -> str:
    """The only value of an array, for people. Python knows the years 1 to 9999 only, and Spark others too."""
    import pyarrow as pa

    try:
        return repr(value.to_pylist()[0])
    except UnicodeDecodeError:
        is_text = pa.types.is_string(value.type) or pa.types.is_large_string(value.type)
        return repr(value.cast(pa.binary()).to_pylist()[0]) if is_text else "(bytes that are not text)"
    except (ValueError, OverflowError):
        return _year_of(value)


def _year_of(value: pa.Array | pa.ChunkedArray) -> str:
    import pyarrow as pa

    if pa.types.is_date(value.type):
        days = value.cast(pa.date32()).cast(pa.int32()).to_pylist()[0]
    elif pa.types.is_timestamp(value.type):
        days = value.cast(pa.timestamp("us", value.type.tz)).cast(pa.int64()).to_pylist()[0] // _DAY_US
    else:
        return "(a time outside the calendar)"
    cycles, rest = divmod(days - _FIRST_DAY, _CYCLE_DAYS)
    return f"a time of the year {400 * cycles + date.fromordinal(rest + 1).year}"


# -- checks -----------------------------------------------------------------------------------------------------------


def sound(kind: Any, *, nul: bool = True) -> Check:
    """The check for a column of Delta's type ``kind``: texts are UTF-8, dates and times are in the years 1 to 9999.

    ``nul``: whether a text may contain the character NUL.
    """

    def check(column: pa.Array) -> str | None:
        return _flaw(column, kind, nul)

    return check


def _flaw(column: pa.Array, kind: Any, nul: bool) -> str | None:
    if not isinstance(kind, dict):
        return _flaw_of_text(column, nul) if kind == "string" else _flaw_of_time(column, str(kind))
    if kind["type"] == "struct":
        parts = zip(kind["fields"], column.flatten(), strict=True)
        return _first(_flaw(part, field["type"], nul) for field, part in parts)
    if kind["type"] == "array":
        return _flaw(column.flatten(), kind["elementType"], nul)
    if kind["type"] == "map":
        return _first(
            _flaw(part, kind[which], nul)
            for part, which in zip((column.keys, column.items), ("keyType", "valueType"), strict=True)
        )
    raise AssertionError(f"no values of type {type_name(kind)} can be staged")


def _first(found: Any) -> str | None:
    return next((what for what in found if what), None)


def _flaw_of_text(column: pa.Array, nul: bool) -> str | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return "is not UTF-8"
    if not nul and pc.any(pc.match_substring(column, "\0")).as_py():
        return "has a NUL character, which PostgreSQL cannot store"
    return None


def _flaw_of_time(column: pa.Array, kind: str) -> str | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind not in _RANGES or len(column) == 0:
        return None
    if kind == "date":
        numbers = column.cast(pa.date32()).cast(pa.int32())
    else:
        numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    bounds = pc.min_max(numbers).as_py()
    first, last = _RANGES[kind]
    if bounds["min"] is not None and (bounds["min"] < first or bounds["max"] > last):
        return "is outside of the years 1 to 9999"
    return None
