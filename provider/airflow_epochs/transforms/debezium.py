"""Changes of a relational database's tables, as Debezium tells them in JSON.

See https://debezium.io/documentation/reference/stable/connectors/ ("Data change events"). An event has ``before``,
``after``, ``op``, ``source`` and ``ts_ms``, with or without an envelope of ``schema`` and ``payload`` around them.
"""

from __future__ import annotations

import hashlib
import uuid
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import column_named, field_of, quoted
from airflow_epochs.transforms.json_records import columns_of, parse_json
from airflow_epochs.transforms.parsed import ERROR, ORIGIN, corrupt_of, kept_of, origin_beside

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
_UNSENT = "__debezium_unavailable_value"
"""What Debezium writes for a large value that PostgreSQL has not sent it, because the change does not touch it."""
_UNSENT_BYTES = b64encode(_UNSENT.encode()).decode()
_UNSENT_INTEGERS = ",".join(f"{byte}" for byte in _UNSENT.encode())
_UNSENT_FLOATS = ",".join(f"{byte}.0" for byte in _UNSENT.encode())
_UNSENT_UUID = str(uuid.UUID(bytes=hashlib.md5(_UNSENT.encode(), usedforsecurity=False).digest(), version=3))
_UNSENT_VALUES = (
    *(_UNSENT, _UNSENT_BYTES, f'{{"{_UNSENT}":"{_UNSENT}"}}'),  # the last one of an hstore
    *(f'["{element}"]' for element in (_UNSENT, _UNSENT_BYTES, _UNSENT_UUID)),
    *(f"[{numbers}]" for numbers in (_UNSENT_INTEGERS, _UNSENT_FLOATS)),
)
"""``_UNSENT`` as columns of each type have it, in the text that Spark puts into a map of texts."""
_IS_TIME = "(ts_ms BETWEEN -62135596800000 AND 253402300799999)"
"""The years 1 to 9999. Spark's query would fail at a number that is too large for it."""
_CHECKS = Checks("parse_debezium")


@dataclass(frozen=True)
class Changes:
    """What ``parse_debezium`` makes of a batch. Each record but tombstones is in ``rows``, or in ``corrupt``, once.

    Attributes:
        rows: The columns that were kept; the table's columns as the change leaves them (for a deletion: as they were
            before); ``op``; the structs ``before``, ``after`` and ``source``; and ``at``, when Debezium saw the change.
        corrupt: As ``Parsed.corrupt``; also events that are no change of a row, such as TRUNCATE, and events that lack
            the value of a column.
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
        schema: The columns of the table, as in ``parse_json``, in the types of the JSON. These depend on the
            connector's ``decimal.handling.mode`` and ``time.precision.mode``: docs/read-your-topic.md has a table of
            them. By default, a decimal is base64, which is a ``string``, and ``debezium_decimal`` makes the number of
            it; a date is days since 1970, and a time without a zone milli-, micro- or nanoseconds since 1970. With the
            default ``mode``, a value that does not fit its type is NULL.
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
    kept = kept_of(_CHECKS, batch, columns, [*table.fieldNames(), *_MADE], "the changes have it, too")
    names, more = kept.columns, origin_beside(_CHECKS, batch, kept, corrupt)
    if taken := {name.lower() for name in table.fieldNames()} & {*_MADE}:
        raise _CHECKS.argument("schema", sorted(taken), f"a schema of columns with other names than {', '.join(_MADE)}")
    event = _event(table, columns_of(batch, source))
    parsed = parse_json(
        batch.where(F.col(quoted(value)).isNotNull()),
        _with_payload(event),
        mode=mode,
        corrupt=corrupt,
        columns=[*columns, *more, F.col(quoted(value)).alias(_VALUE)],
        value=value,
        engine=engine,
    )
    told = [f"coalesce(payload.{name}, {name}) AS {name}" for name in event.fieldNames()]
    events = parsed.rows.selectExpr(*map(column_named, [*names, *more]), _VALUE, *told)
    judged = events.withColumn(ERROR, F.coalesce(_flaw(mode == "strict"), _lack(table)))
    image = [
        f"CASE WHEN op = 'd' THEN {field_of('before', name)} ELSE {field_of('after', name)} END AS {quoted(name)}"
        for name in table.fieldNames()  # in SQL, as in fields_of
    ]
    rows = judged.where(F.col(ERROR).isNull()).selectExpr(
        *map(column_named, names),
        *image,
        "op",
        *_IMAGES,
        "source",
        f"CASE WHEN {_IS_TIME} THEN timestamp_millis(ts_ms) END AS at",
    )
    no_change = judged.where(F.col(ERROR).isNotNull())
    bad = corrupt_of(no_change, [*names, *more], ERROR, _VALUE, corrupt)
    return Changes(rows, parsed.corrupt.drop(_VALUE).unionByName(bad))


def _event(table: StructType, source: StructType) -> StructType:
    from pyspark.sql.types import StructType

    images = StructType().add("before", table).add("after", table)
    return images.add("op", "string").add("ts_ms", "long").add("source", source)


def _with_payload(event: StructType) -> StructType:
    """The type of an event with or without an envelope."""
    from pyspark.sql.types import StructType

    return StructType([*event.fields]).add("payload", event)


def _flaw(strict: bool) -> Column:
    """Why an event is no change of a row; NULL if it is one."""
    from pyspark.sql import functions as F

    op = F.col("op")
    return (
        F.when(op.isNull(), "no operation")
        .when(~op.isin("c", "r", "u", "d"), F.concat(F.lit("no change of a row: the operation is "), op))
        .when((op == "d") & F.col("before").isNull(), "a deletion that does not say of what")
        .when((op != "d") & F.col("after").isNull(), "a change without the row after it")
        .when(F.expr(f"{strict} AND NOT {_IS_TIME}"), "a value does not fit its column")
    )


def _lack(table: StructType) -> Column:
    """Which columns' values the database has not sent for the new row; NULL if it has sent each.

    Few records have the placeholder anywhere. Only those are parsed once more, for texts: in the table's own type, the
    placeholder may be NULL.
    """
    from pyspark.sql import functions as F

    text = F.col(_VALUE).cast("string")
    parsed = F.from_json(text, "after map<string, string>, payload struct<after: map<string, string>>")
    image = F.coalesce(parsed["payload"]["after"], parsed["after"])
    names = table.fieldNames()
    unsent = F.map_keys(F.map_filter(image, lambda name, told: told.isin(*_UNSENT_VALUES) & name.isin(*names)))
    return F.when(
        (F.col("op") != "d") & reduce(or_, _traces(text, table)) & (F.size(unsent) > 0),
        F.concat(
            F.lit("the event lacks the unchanged value of "),
            F.array_join(unsent, ", "),
            F.lit(": set REPLICA IDENTITY FULL for the table in the database"),
        ),
    )


def _traces(text: Column, table: StructType) -> list[Column]:
    """Conditions for events that may lack a value: such an event fulfils at least one."""
    traces = [text.contains(_UNSENT), text.contains(_UNSENT_BYTES)]
    if any(field.dataType.typeName() == "array" for field in table.fields):
        numbers = r"(\.0)?,\s*".join(_UNSENT_INTEGERS.split(","))
        traces += [text.contains(_UNSENT_UUID), text.rlike(numbers)]
    return traces
