"""How Delta stores values in partition columns: as texts in the table's log, and some come back as other values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta import staged, table_rules
from airflow_epochs.spark.driver.delta.dates import UNKNOWN
from airflow_epochs.spark.driver.delta.plans import CommitPlan, DeltaStaging, DescribedTable
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.spark.driver.wire import JsonDict
from airflow_epochs.transforms.conditions import column_named, is_text, outside, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

Value = tuple[str, str, str]
"""The name of a partition column, its value in SQL, and its type."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Spark's writer puts rows with NULL into a folder of this name, and takes NULL from the name."""
SET_UTC = "Set spark.sql.session.timeZone=UTC, in `session_conf` of SparkConnect or in `conf` of SparkSubmit"


def difference(now: Collection[str], staged: Collection[str]) -> str | None:
    """Why a table's partition columns ``now`` are not the ``staged`` ones; None if they are. Names have no case."""
    if {name.lower() for name in now} == {name.lower() for name in staged}:
        return None
    return f"it is partitioned by {list(now)} now, and was by {list(staged)} when the rows were staged"


def stored(df: DataFrame, partition_by: Collection[str]) -> DataFrame:
    """``df`` with NULL for an empty text in a partition column, as Delta stores it."""
    from pyspark.sql import functions as F

    for field in _fields(df, partition_by):
        if is_text(field.dataType.simpleString()):
            value = F.expr(f"nullif({column_named(field.name)}, '')")
            df = df.withColumn(field.name, value.alias(field.name, metadata=field.metadata))
    return df


def flaw(value: str, kind: Any) -> tuple[str, str] | None:
    """What is wrong with a value in a partition column, and the condition in SQL that is true of it; None if nothing.

    Other readers than Spark cannot open the table, or cannot read it, if its log has such a time.
    """
    if condition := outside(value, kind) if isinstance(kind, str) else None:
        return UNKNOWN, condition
    return (f"is the text {NO_VALUE}, which Spark takes for NULL", f"{value} = '{NO_VALUE}'") if is_text(kind) else None


def sound(df: DataFrame, plan: DeltaStaging) -> DataFrame:
    """``df``, which fails on the first row with a value in a partition column that some reader would not get."""
    for name, value, kind in _values(df, plan):
        if known := flaw(value, kind):
            what, condition = known
            told = f"A value of the partition column {name} of {plan.target} {what}"
            df = table_rules.failing(
                df, f"NOT coalesce({condition}, false)", told, shown=None if is_text(kind) else value
            )
    return df


def unambiguous(df: DataFrame, plan: DeltaStaging) -> DataFrame:
    """``df``, which fails on the first row whose instant in a partition column would come back as another one.

    Delta's writer makes a local time of it. Where clocks are set back, an hour has its local times twice.
    """
    for name, instant in _instants(_values(df, plan)):
        df = table_rules.failing(df, _comes_back(instant), f"{_ambiguous(name, plan.target)}. {SET_UTC}")
    return df


def require_unambiguous(spark: SparkSession, plan: CommitPlan, table: DescribedTable | None) -> None:
    """Check the staged rows once more before their commit: its time zone may differ from the time zone of staging.

    The table may also be partitioned by other columns since.

    Raises:
        Refused: An instant in a partition column would come back as another one.
    """
    names = plan.partition_by if table is None else instants(table.schema, table.partition_by)
    if not names:
        return
    rows = staged.rows(spark, plan.place)
    for name, instant in _instants(_given(rows, names)):
        if rows.where(f"NOT ({_comes_back(instant)})").limit(1).collect():
            raise refused(_ambiguous(name, plan.target))


def refused(what: str) -> Refused:
    """The error for a commit that would change an instant; nothing was written."""
    return Refused(f"{what}.", code=codes.SPARK_VALUE_INVALID, remedy=f"{SET_UTC}.")


def moved(spark: SparkSession, target: str, names: Collection[str], join: str) -> str | None:
    """Why rows of a table, ``t`` in the ``join``, would get into other partitions if a MERGE wrote them anew.

    It writes the files anew in which it finds a row; a file is of one partition. The first query shows whether the
    table has such partitions at all. It reads files of ambiguous partitions only.
    """
    for name in names:
        from_table, ambiguous = f"SELECT 1 FROM {identifier(target)} AS t", f"NOT ({_comes_back(f't.{quoted(name)}')})"
        queries = (f"{from_table}{each} WHERE {ambiguous} LIMIT 1" for each in ("", join))
        if all(spark.sql(query).collect() for query in queries):
            return (
                f"The MERGE would write rows of {target} anew whose instant in the partition column {name} is "
                "ambiguous in the session's time zone, where clocks are set back: they would get another instant"
            )
    return None


def that_stay(table: DescribedTable) -> str | None:
    """The condition of partitions whose values do not change if Spark writes their rows anew; None if all stay."""
    return " AND ".join(f"({_comes_back(quoted(name))})" for name in instants(table.schema, table.partition_by)) or None


def instants(schema: JsonDict | None, partition_by: Collection[str]) -> list[str]:
    """The partition columns of a table that are instants."""
    kinds = {field["name"].lower(): field["type"] for field in (schema or {"fields": []})["fields"]}
    return [name for name in partition_by if kinds.get(name.lower()) == "timestamp"]


def _ambiguous(name: str, target: str) -> str:
    return (
        f"An instant in the partition column {name} of {target} is ambiguous in the session's time zone, where clocks "
        "are set back"
    )


def _comes_back(instant: str) -> str:
    """The condition that an instant survives Delta's writer, which stores it as a local time."""
    return f"({instant}) <=> CAST(CAST(({instant}) AS STRING) AS TIMESTAMP_LTZ)"


def _instants(found: Iterable[Value]) -> list[tuple[str, str]]:
    """The partition columns that are instants, each with its value in SQL."""
    return [(name, value) for name, value, kind in found if kind == "timestamp"]


def _values(df: DataFrame, plan: DeltaStaging) -> list[Value]:
    """The values of all partition columns of the table."""
    return [*_given(df, plan.partition_by), *_generated(df, plan)]


def _given(df: DataFrame, partition_by: Collection[str]) -> list[Value]:
    """The values of the partition columns that the rows have."""
    return [
        (field.name, column_named(field.name), field.dataType.simpleString()) for field in _fields(df, partition_by)
    ]


def _generated(df: DataFrame, plan: DeltaStaging) -> list[Value]:
    """The values of partition columns that the table computes from the rows; an upsert may lack the columns for it."""
    names = {name.lower() for name in plan.partition_by} - {name.lower() for name in df.columns}
    found, kinds = [], {}
    for column in (plan.schema or {"fields": []})["fields"]:
        expression = column.get("metadata", {}).get(delta_schema.GENERATED)
        if expression and column["name"].lower() in names:
            found.append((column["name"], f"({expression})"))
            kinds[column["name"]] = column["type"]
    return [(name, value, kinds[name]) for name, value in table_rules.decidable(df, found)]


def _fields(df: DataFrame, names: Collection[str]) -> list[StructField]:
    """The columns of these names, which have no case."""
    wanted = {name.lower() for name in names}
    return [field for field in df.schema.fields if field.name.lower() in wanted] if wanted else []
