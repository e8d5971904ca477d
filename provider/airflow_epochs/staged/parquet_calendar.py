"""Dates and instants of long ago that a Parquet file has in another calendar than pyarrow reads.

Spark 2 and Hive wrote the Julian calendar's days before 1582-10-15, and instants before 1900 in the local time of a
place. Newer Sparks do the same if they are told to (``spark.sql.parquet.datetimeRebaseModeInWrite=LEGACY``) and mark
the file. Spark reads such files right, pyarrow moves their dates by days without a word. Where the file's statistics
say that all its values are newer, both calendars are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_SPARK_VERSION = b"org.apache.spark.version"
_LEGACY_DATES, _LEGACY_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
_PROLEPTIC_SINCE, _PROLEPTIC_INT96_SINCE = (3, 0), (3, 1)
_ALWAYS_PROLEPTIC = ("parquet-cpp", "parquet-rs", "delta-rs", "DuckDB", "Polars")
"""How writers without the JVM's calendars call themselves."""
_FIRST_DAY = -141_427
"""1582-10-15, in days since 1970."""
_FIRST_SECOND = -2_208_988_800
"""1900-01-01 in UTC: since then every time zone's offset is the same in both calendars."""
_PER_SECOND = {"milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


def misread(metadata: Any) -> list[str]:
    """The columns of a Parquet file of which pyarrow may read other days or instants than were written.

    Args:
        metadata: The file's ``pyarrow.parquet.FileMetaData``.
    """
    of_dates, of_int96 = _is_legacy(metadata)
    if not of_dates and not of_int96:
        return []
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    return [
        column.path
        for number, column in enumerate(columns)
        if _may_be_old(metadata, number, column, of_dates=of_dates, of_int96=of_int96)
    ]


def _is_legacy(metadata: Any) -> tuple[bool, bool]:
    """Whether dates and timestamps, and whether INT96 timestamps, may be in the calendar of old."""
    marks = metadata.metadata or {}
    version = marks.get(_SPARK_VERSION)
    if version is None:
        unknown = not str(metadata.created_by).startswith(_ALWAYS_PROLEPTIC)
        return unknown, unknown
    found = re.match(rb"(\d+)\.(\d+)", version)
    spark = (int(found[1]), int(found[2])) if found else (0, 0)
    return (
        spark < _PROLEPTIC_SINCE or _LEGACY_DATES in marks,
        spark < _PROLEPTIC_INT96_SINCE or _LEGACY_INT96 in marks,
    )


def _may_be_old(metadata: Any, number: int, column: Any, *, of_dates: bool, of_int96: bool) -> bool:
    if column.physical_type == "INT96":  # which has no statistics
        return of_int96 and metadata.num_rows > 0
    first = _first_of_new(column)
    if first is None or not of_dates:
        return False
    return any(
        chunk.statistics is None or not _is_newer(chunk.statistics, first) for chunk in _chunks(metadata, number)
    )


def _is_newer(statistics: Any, first: int) -> bool:
    if statistics.has_min_max:
        return bool(statistics.min_raw >= first)
    return bool(statistics.num_values == 0)


def _chunks(metadata: Any, number: int) -> Iterator[Any]:
    return (metadata.row_group(group).column(number) for group in range(metadata.num_row_groups))


def _first_of_new(column: Any) -> int | None:
    """The first value of a date or timestamp column that is the same in both calendars; None for other columns."""
    kind = json.loads(column.logical_type.to_json())
    if kind["Type"] == "Date":
        return _FIRST_DAY
    if kind["Type"] == "Timestamp":
        return _FIRST_SECOND * _PER_SECOND[kind["timeUnit"]]
    return None
