"""A sample of staged rows: their columns, and the first rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_epochs.contracts import Row, StagedSample
from airflow_epochs.delta.log import rows_of
from airflow_epochs.event_time import instant_text
from airflow_epochs.spark.driver.delta.schema import type_name
from airflow_epochs.staged.staging import Staging

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def sample_of(staging: Staging, rows: Iterable[Row], most: int) -> StagedSample:
    """The sample of what was staged. ``rows``: all rows; no more than ``most`` are read."""
    return StagedSample(
        columns=tuple((field["name"], type_name(field["type"])) for field in staging.shape.schema["fields"]),
        count=sum(map(rows_of, staging.files)),
        rows=tuple(islice(rows, most)),
    )


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows of Arrow batches."""
    for batch in batches:
        columns = [values_of(column) for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(batch.schema.names, values, strict=True))


def values_of(column: pa.Array) -> list[Any]:
    """Values of one column; instants as texts, as Python's calendar does not have all of them."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
        return [None if number is None else instant_text(number) for number in numbers]
    if pa.types.is_date(column.type):
        days = column.cast(pa.int32()).to_pylist()
        return [None if day is None else _day(day) for day in days]
    return list(column.to_pylist())


def _day(days: int) -> str:
    try:
        return (_EPOCH + timedelta(days)).date().isoformat()
    except OverflowError:
        return f"day {days}"
