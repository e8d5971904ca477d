"""Files of a table, read without Delta; and whether they are there."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta.spelling import path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""A file that is missing or damaged is an error, whatever a transform sets before it reads a state or the batch."""


def rows_in(spark: SparkSession, schema: StructType, location: str, files: Collection[str]) -> DataFrame:
    """The rows of some files of a table. A column that a file lacks is NULL: it is newer.

    Each file is named, so Spark takes no folder's name for a partition column.
    """
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).options(**STRICT).parquet(*(path_of(location, file) for file in files))


def entries(location: str, names: str) -> str:
    """A pattern of files in the log of the table at ``location``. ``names``: the pattern of their names."""
    return f"{path_of(location, '_delta_log')}/{names}"


def exists(spark: SparkSession, pattern: str) -> bool:
    """Whether a file matches ``pattern``."""
    try:
        return bool(spark.read.format("binaryFile").load(pattern).select("path").limit(1).collect())
    except Exception as error:
        if is_missing(error):
            return False
        raise


def is_missing(error: Exception) -> bool:
    """Whether Spark says that a file or a table is not there."""
    classes = ("TABLE_OR_VIEW_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND")
    return any(name in str(error) for name in (*classes, "DELTA_PATH_DOES_NOT_EXIST", "SCHEMA_NOT_FOUND"))
