"""Parquet files that the log of a table names, read without its log."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta.spelling import path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""A file that is missing or damaged is an error, whatever the server is set up to ignore."""


def rows_in(spark: SparkSession, schema: StructType, location: str, files: Collection[str]) -> DataFrame:
    """The rows of some files of a table. A column that a file lacks is NULL: it is newer.

    Each file is named, so Spark takes no folder's name for a partition column.
    """
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).options(**STRICT).parquet(*(path_of(location, file) for file in files))
