"""What Delta makes of values in partition columns: they are texts in the table's log, and some come back as others."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta import table_rules
from airflow_epochs.spark.driver.delta.plans import DeltaStaging
from airflow_epochs.transforms.conditions import is_text, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField


def difference(now: Collection[str], staged: Collection[str]) -> str | None:
    """Why rows staged for a table's partitions mean others now; None if they mean the same. Names have no case."""
    if {name.lower() for name in now} == {name.lower() for name in staged}:
        return None
    return f"it is partitioned by {list(now)} now, and was by {list(staged)} when the rows were staged"


def stored(df: DataFrame, partition_by: Collection[str]) -> DataFrame:
    """``df`` with NULL for an empty text in a partition column, as Delta stores it."""
    from pyspark.sql import functions as F

    for field in _fields(df, partition_by):
        if is_text(field.dataType.simpleString()):
            value = F.expr(f"nullif({quoted(field.name)}, '')")
            df = df.withColumn(field.name, value.alias(field.name, metadata=field.metadata))
    return df


def unambiguous(df: DataFrame, plan: DeltaStaging) -> DataFrame:
    """``df``, which fails on the first row whose instant in a partition column would come back as another one.

    Delta's writer makes a local time of it. Where clocks are set back, an hour has its local times twice.
    """
    for name, instant in [*_given_instants(df, plan), *_generated_instants(df, plan)]:
        df = table_rules.failing(
            df,
            f"({instant}) <=> CAST(CAST(({instant}) AS STRING) AS TIMESTAMP_LTZ)",
            f"An instant in the partition column {name} of {plan.target} is ambiguous in the session's time zone, "
            "where clocks are set back. Set spark.sql.session.timeZone=UTC, in `session_conf` of SparkConnect or "
            "in `conf` of SparkSubmit",
        )
    return df


def _given_instants(df: DataFrame, plan: DeltaStaging) -> list[tuple[str, str]]:
    """The partition columns of the rows that are instants, each with its value in SQL."""
    fields = _fields(df, plan.partition_by)
    return [(field.name, quoted(field.name)) for field in fields if field.dataType.simpleString() == "timestamp"]


def _generated_instants(df: DataFrame, plan: DeltaStaging) -> list[tuple[str, str]]:
    """The same for those that the table computes from the rows. An upsert may lack what they are computed from."""
    names = {name.lower() for name in plan.partition_by} - {name.lower() for name in df.columns}
    found = []
    for column in (plan.schema or {"fields": []})["fields"]:
        expression = column.get("metadata", {}).get(delta_schema.GENERATED)
        if expression and column["type"] == "timestamp" and column["name"].lower() in names:
            found.append((column["name"], expression))
    return table_rules.decidable(df, found)


def _fields(df: DataFrame, names: Collection[str]) -> list[StructField]:
    """The columns of these names, which have no case."""
    wanted = {name.lower() for name in names}
    return [field for field in df.schema.fields if field.name.lower() in wanted] if wanted else []
