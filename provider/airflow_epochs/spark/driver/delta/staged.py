"""Reads staged rows back, out of the private table of a try."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta.files import STRICT, is_missing, rows_in
from airflow_epochs.spark.driver.delta.schema import maps_columns
from airflow_epochs.spark.driver.delta.spelling import for_spark, path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_LOG = (
    "metaData struct<schemaString: string, partitionColumns: array<string>, configuration: map<string, string>>, "
    "add struct<path: string, deletionVector: struct<storageType: string>>, remove struct<path: string>"
)


def rows(spark: SparkSession, place: str) -> DataFrame:
    """The rows that were staged at ``place``.

    Spark reads the few lines of the log, and the files that they name. Delta's reader would first compute the state of
    the table: three queries more, which take longer than the rows of a small epoch. It is used only if the files do not
    hold all that the table has.
    """
    from pyspark.sql.types import StructType

    lines = _lines(spark, place)
    described = [line["metaData"] for line in lines if line["metaData"]]
    added = [line["add"] for line in lines if line["add"]]
    if len(described) != 1 or any(line["remove"] for line in lines) or not _tell_all(described[0], added):
        return table(spark, place)
    schema = StructType.fromJson(json.loads(described[0]["schemaString"]))
    return rows_in(spark, schema, place, [file["path"] for file in added])


def table(spark: SparkSession, place: str) -> DataFrame:
    """The rows that were staged at ``place``, read by Delta's reader.

    For the source of a MERGE. Delta copies a source that is not a Delta table first, since it might change meanwhile.
    """
    return spark.read.format("delta").load(for_spark(place))


def _lines(spark: SparkSession, place: str) -> list[Row]:
    """The log's lines about columns and files; empty if there is no log. Then Delta's reader raises the error.

    A line that is not JSON is an error: it might name a file.
    """
    reader = spark.read.schema(_LOG).options(mode="FAILFAST", pathGlobFilter="*.json", **STRICT)
    try:
        found: list[Row] = reader.json(path_of(place, "_delta_log")).collect()
    except Exception as error:
        if is_missing(error):
            return []
        raise
    return found


def _tell_all(described: Row, added: list[Row]) -> bool:
    """Whether the files have all that the table has, under the same names."""
    mapped = maps_columns(described["configuration"] or {})
    has_void = '"void"' in described["schemaString"]
    return not (mapped or has_void or described["partitionColumns"] or any(file["deletionVector"] for file in added))
