"""Dates that only Spark knows. Where one is in the statistics of a file, deltalake cannot read the table as Arrow.

Spark's commits write such statistics, and so does an OPTIMIZE. They do no harm for dates within a struct, an array or a
map, nor for instants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_epochs.spark.driver.delta import table_rules
from airflow_epochs.spark.driver.delta.plans import DeltaChangeStaging, DeltaStaging
from airflow_epochs.transforms.conditions import column_named, outside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNKNOWN = "is outside of the years 1 to 9999"


def unknown(value: str, kind: Any) -> str | None:
    """The condition that a column's value is a date outside of the years 1 to 9999; None for another type."""
    return outside(value, kind) if kind == "date" else None


def known(df: DataFrame, plan: DeltaStaging) -> DataFrame:
    """``df``, which fails on the first row with an ``unknown`` date. A row that deletes a key brings no values.

    ``df`` is unchanged if the plan takes such dates.
    """
    deletes = plan.how.delete_when if isinstance(plan, DeltaChangeStaging) else None
    for field in df.schema.fields if plan.wants_known_dates else ():
        value = column_named(field.name)
        if condition := unknown(value, field.dataType.simpleString()):
            met = f"NOT coalesce({condition}, false) OR coalesce(({deletes or 'false'}), false)"
            df = table_rules.failing(df, met, f"A value of column {field.name} of {plan.target} {UNKNOWN}", shown=value)
    return df
