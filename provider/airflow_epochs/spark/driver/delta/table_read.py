"""Reads versions of a Delta table as an epoch's input: what they add, what they change, or all rows of the last one.

The task's side has read the table's log. So it says which files the versions add, and Spark reads these alone: a later
OPTIMIZE or DELETE changes nothing about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_epochs.spark.driver.delta.files import rows_in
from airflow_epochs.spark.driver.delta.spelling import for_spark
from airflow_epochs.spark.driver.plans import TableRead
from airflow_epochs.spark.driver.wire import JsonDict
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

CHANGES = {"_change_type": "string", "_commit_version": "bigint", "_commit_timestamp": "timestamp_ltz"}
"""The columns of Delta's change data feed."""
_OF_DELTA, _DEFAULTS = "delta.", ("CURRENT_DEFAULT", "EXISTS_DEFAULT")
"""Properties by which a table tells its writers how to fill a column: how their names begin, or the names."""
_FILE, _KNOWN = "__epochs_file", "__epochs_known"


def batch(spark: SparkSession, read: TableRead) -> DataFrame:
    """The batch as a lazy DataFrame, with the columns that the table has at the last version."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(_for_readers(read.schema))
    if read.start == read.end:
        rows = _none(spark, read, schema)
    elif read.start == 0:
        rows = _whole(spark, read)
    else:
        rows = _changes(spark, read) if read.feed else _appended(spark, read, schema)
    columns = [_as_told(field, read.schema) for field in schema.fields]
    return rows.select(*columns, *(CHANGES if read.feed else []))


def _for_readers(schema: Any) -> Any:
    """A schema, or a part of it, without what only writers of the table must know, such as how a column is generated.

    A sink would take it for what its own table must do.
    """
    if isinstance(schema, list):
        return [*map(_for_readers, schema)]
    if not isinstance(schema, dict):
        return schema
    return {key: _told(part) if key == "metadata" else _for_readers(part) for key, part in schema.items()}


def _told(metadata: JsonDict) -> JsonDict:
    return {key: told for key, told in metadata.items() if not key.startswith(_OF_DELTA) and key not in _DEFAULTS}


def _as_told(field: StructField, schema: JsonDict) -> Column:
    """The column with the properties of ``field`` alone. Delta's reader leaves others, which are for writers."""
    from pyspark.sql import functions as F

    column = F.col(quoted(field.name))
    stored = {each["name"]: each.get("metadata", {}) for each in schema["fields"]}
    return column if stored[field.name] == field.metadata else column.alias(field.name, metadata=field.metadata)


def _none(spark: SparkSession, read: TableRead, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as F

    more = [F.lit(None).cast(kind).alias(name) for name, kind in CHANGES.items()] if read.feed else []
    return spark.createDataFrame([], schema).select("*", *more)


def _whole(spark: SparkSession, read: TableRead) -> DataFrame:
    """The rows of the last version; in a feed, as the inserts of this version."""
    from pyspark.sql import functions as F

    last = read.end - 1
    rows = spark.read.format("delta").option("versionAsOf", last).load(for_spark(read.location))
    if not read.feed:
        return rows
    values = ("insert", last, F.timestamp_millis(F.lit(read.at_ms).cast("bigint")))
    return rows.select(
        "*", *(F.lit(v).cast(kind).alias(n) for (n, kind), v in zip(CHANGES.items(), values, strict=True))
    )


def _changes(spark: SparkSession, read: TableRead) -> DataFrame:
    versions = {"startingVersion": read.start, "endingVersion": read.end - 1}
    reader = spark.read.format("delta").option("readChangeFeed", "true").options(**versions)
    return reader.load(for_spark(read.location))


def _appended(spark: SparkSession, read: TableRead, schema: StructType) -> DataFrame:
    """The rows of the files that the versions add."""
    from pyspark.sql.types import StructType

    if not read.files:
        return spark.createDataFrame([], schema)
    stored = StructType([field for field in schema.fields if field.name not in read.partition_by])
    rows = rows_in(spark, stored, read.location, read.files)
    return _with_partitions(spark, read, rows, schema) if read.partition_by else rows


def _with_partitions(spark: SparkSession, read: TableRead, rows: DataFrame, schema: StructType) -> DataFrame:
    """The rows with the partition columns, which are not in the files."""
    from pyspark.sql import functions as F

    names = {name: f"__epochs_partition_{number}" for number, name in enumerate(read.partition_by)}
    told = [(file.rpartition("/")[2], *values, True) for file, values in read.files.items()]
    columns = ", ".join(f"{name} string" for name in (_FILE, *names.values()))
    values = spark.createDataFrame(told, f"{columns}, {_KNOWN} boolean").distinct()
    joined = rows.select("*", F.col("_metadata.file_name").alias(_FILE)).join(F.broadcast(values), _FILE, "left")
    return joined.select(*(_column(field, names) for field in schema.fields))


def _column(field: StructField, partitions: Mapping[str, str]) -> Column:
    """A column of a row. A partition column follows from the row's file: Spark fails on a file that is not named."""
    from pyspark.sql import functions as F

    if field.name not in partitions:
        return F.col(quoted(field.name))
    unknown = F.raise_error(F.concat(F.lit("no partition is known of the file "), F.col(_FILE)))
    value = F.when(F.col(_KNOWN), F.col(partitions[field.name])).otherwise(unknown)
    return value.cast(field.dataType).alias(field.name)
