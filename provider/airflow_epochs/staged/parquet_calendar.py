"""Finds old dates and instants that a Parquet file has in another calendar than pyarrow expects.

Spark 2 and Hive wrote days before 1582-10-15 in the Julian calendar, and instants before 1900 in a place's local time.
Newer versions of Spark do so if ``spark.sql.parquet.datetimeRebaseModeInWrite=LEGACY`` is set, and mark the file. Spark
reads such files correctly. pyarrow shifts their dates by days without a warning. If the file's statistics show that all
values are newer, both calendars agree.
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
"""Names of writers that never use the old calendar."""
_FIRST_DAY = -141_427
"""1582-10-15, in days since 1970-01-01."""
_FIRST_SECOND = -2_208_988_800
"""1900-01-01 in UTC. Since then every time zone has the same offset in both calendars."""
_PER_SECOND = {"milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


def misread(metadata: Any) -> list[str]:
    """The columns of a Parquet file whose days or instants pyarrow may read wrongly.

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
    """Whether dates and timestamps, and whether INT96 timestamps, may be in the old calendar."""
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
    if column.physical_type == "INT96":  # has no statistics
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
    """The first value that is the same in both calendars; None if the column has neither dates nor timestamps."""
    kind = json.loads(column.logical_type.to_json())
    if kind["Type"] == "Date":
        return _FIRST_DAY
    if kind["Type"] == "Timestamp":
        return _FIRST_SECOND * _PER_SECOND[kind["timeUnit"]]
    return None
