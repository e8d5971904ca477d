"""What Delta makes of values in partition columns: they are texts in the table's log, and some come back as others."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta import table_rules
from airflow_epochs.transforms.conditions import is_text, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField


def stored(df: DataFrame, partition_by: Collection[str]) -> DataFrame:
    """``df`` with NULL for an empty text in a partition column, as Delta stores it."""
    from pyspark.sql import functions as F

    for field in _fields(df, partition_by):
        if is_text(field.dataType.simpleString()):
            value = F.expr(f"nullif({quoted(field.name)}, '')")
            df = df.withColumn(field.name, value.alias(field.name, metadata=field.metadata))
    return df


def unambiguous(df: DataFrame, target: str, partition_by: Collection[str]) -> DataFrame:
    """``df``, which fails on the first row whose instant in a partition column would come back as another one.

    Delta's writer makes a local time of it. Where clocks are set back, an hour has its local times twice.
    """
    for field in _fields(df, partition_by):
        if field.dataType.simpleString() == "timestamp":
            name = quoted(field.name)
            df = table_rules.failing(
                df,
                f"{name} <=> CAST(CAST({name} AS STRING) AS TIMESTAMP_LTZ)",
                f"An instant in the partition column {field.name} of {target} is ambiguous in the session's time zone, "
                "where clocks are set back. Set spark.sql.session.timeZone=UTC, in `session_conf` of SparkConnect or "
                "in `conf` of SparkSubmit",
            )
    return df


def _fields(df: DataFrame, names: Collection[str]) -> list[StructField]:
    """The columns of these names, which have no case."""
    wanted = {name.lower() for name in names}
    return [field for field in df.schema.fields if field.name.lower() in wanted] if wanted else []
