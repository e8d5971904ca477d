"""Changes of a database's tables, as Debezium tells them in JSON.

See https://debezium.io/documentation/reference/stable/connectors/ ("Data change events"). An event has ``before``,
``after``, ``op``, ``source`` and ``ts_ms``, with or without an envelope of ``schema`` and ``payload`` around them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import column_named, field_of, quoted
from airflow_epochs.transforms.json_records import columns_of, parse_json
from airflow_epochs.transforms.parsed import ERROR, ORIGIN, origin_beside

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

SOURCE = (
    "ts_ms bigint, db string, schema string, table string, "  # all databases
    "lsn bigint, "  # PostgreSQL
    "file string, pos bigint, row bigint, "  # MySQL and MariaDB
    "commit_lsn string, change_lsn string, event_serial_no bigint"  # SQL Server
)
"""The fields of an event's ``source`` that are kept, unless the transform says others."""
_IMAGES = ("before", "after")
_MADE = ("op", *_IMAGES, "source", "at")
_VALUE = "__epochs_value"
_CHECKS = Checks("parse_debezium")


@dataclass(frozen=True)
class Changes:
    """What ``parse_debezium`` makes of a batch. Each record but tombstones is in ``rows``, or in ``corrupt``, once.

    Attributes:
        rows: The columns that were kept; those of the table, as the change leaves them, and before it for a deletion;
            ``op``; the structs ``before``, ``after`` and ``source``; and ``at``, when Debezium saw the change.
        corrupt: As ``Parsed.corrupt``; also events that are no change of a row, such as TRUNCATE.
    """

    rows: DataFrame
    corrupt: DataFrame


def parse_debezium(
    batch: DataFrame,
    schema: str | StructType | Mapping[str, Any],
    *,
    source: str | StructType = SOURCE,
    mode: str = "permissive",
    corrupt: str = "raw",
    columns: Sequence[str | Column] = ORIGIN,
    value: str = "value",
    engine: str = "spark",
) -> Changes:
    """Make rows of Debezium's change events, ready for a sink that upserts.

    Give the sink ``keys``, ``sequence_by="offset"`` and ``delete_when="op = 'd'"``. Debezium sends all changes of a key
    to one partition, in order, so the newest one has the highest offset. Where that does not hold, for example after
    the topic got more partitions, name a position of ``source`` instead, such as ``source.lsn`` as a column of its own.

    A tombstone (a record without a value, behind a deletion) says nothing that the deletion has not said: it is in
    neither of the two results.

    Args:
        batch: The epoch's records.
        schema: The columns of the table, as in ``parse_json``, in the types of the JSON: Debezium writes dates as days,
            and times as milli- or microseconds since 1970, so declare those as ``bigint`` and convert them; and
            decimals as base64, unless the connector has ``decimal.handling.mode=string``.
        source: The fields of ``source`` to keep.
        mode: As in ``parse_json``.
        corrupt: As in ``parse_json``.
        columns: As in ``parse_json``.
        value: As in ``parse_json``.
        engine: As in ``parse_json``.

    Raises:
        Refused: As ``parse_json``; also if the table has a column with the name of one that is made.
    """
    from pyspark.sql import functions as F

    table = columns_of(batch, schema)
    kept = batch.select(*columns)
    names, more = kept.columns, origin_beside(batch, kept.columns)
    _CHECKS.has_not("what is kept", kept, [*table.fieldNames(), *_MADE], "the changes have it, too")
    if taken := {name.lower() for name in table.fieldNames()} & {*_MADE}:
        raise _CHECKS.argument("schema", sorted(taken), f"of columns with other names than {', '.join(_MADE)}")
    event = _event(table, columns_of(batch, source))
    parsed = parse_json(
        batch.where(F.col(value).isNotNull()),
        _with_payload(event),
        mode=mode,
        corrupt=corrupt,
        columns=[*columns, *more, F.col(value).alias(_VALUE)],
        value=value,
        engine=engine,
    )
    told = [F.coalesce(f"payload.{name}", name).alias(name) for name in event.fieldNames()]
    events = parsed.rows.select(*names, *more, _VALUE, *told)
    judged = events.withColumn(ERROR, _flaw())
    image = [
        f"CASE WHEN op = 'd' THEN {field_of('before', name)} ELSE {field_of('after', name)} END AS {quoted(name)}"
        for name in table.fieldNames()  # in SQL, as in fields_of
    ]
    rows = judged.where(F.col(ERROR).isNull()).selectExpr(
        *map(column_named, names), *image, "op", *_IMAGES, "source", "timestamp_millis(ts_ms) AS at"
    )
    no_change = judged.where(F.col(ERROR).isNotNull())
    bad = no_change.select(*names, *more, ERROR, F.col(_VALUE).cast("binary").alias(corrupt))
    return Changes(rows, parsed.corrupt.drop(_VALUE).unionByName(bad))


def _event(table: StructType, source: StructType) -> StructType:
    from pyspark.sql.types import StructType

    images = StructType().add("before", table).add("after", table)
    return images.add("op", "string").add("ts_ms", "long").add("source", source)


def _with_payload(event: StructType) -> StructType:
    """An event, or one in an envelope."""
    from pyspark.sql.types import StructType

    return StructType([*event.fields]).add("payload", event)


def _flaw() -> Column:
    """Why an event is no change of a row; NULL if it is one."""
    from pyspark.sql import functions as F

    op = F.col("op")
    return (
        F.when(op.isNull(), "no operation")
        .when(~op.isin("c", "r", "u", "d"), F.concat(F.lit("no change of a row: the operation is "), op))
        .when((op == "d") & F.col("before").isNull(), "a deletion that does not say of what")
        .when((op != "d") & F.col("after").isNull(), "a change without the row after it")
    )
