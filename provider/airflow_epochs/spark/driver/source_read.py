"""The epoch's input, whatever kind of source it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_epochs.spark.driver import kafka_read
from airflow_epochs.spark.driver.delta import table_read
from airflow_epochs.spark.driver.plans import StagePlan, TableRead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Reading(Protocol):
    """A plan that says what to read."""

    @property
    def read(self) -> dict[str, str]:
        """The options of Spark's Kafka reader."""
        ...

    @property
    def table(self) -> TableRead | None:
        """The Delta table to read; None for Kafka."""
        ...


def batch(spark: SparkSession, plan: Reading, secrets: dict[str, str]) -> DataFrame:
    """The batch as a lazy DataFrame."""
    return table_read.batch(spark, plan.table) if plan.table else kafka_read.batch(spark, plan.read, secrets)


def tasks(plan: Reading) -> int:
    """About how many tasks of Spark's read the batch, at least 1. 1 for a table, since Spark's packing is not known."""
    return 1 if plan.table else kafka_read.tasks(plan.read)


def planned(plan: StagePlan) -> int:
    """About how many records there are in the batch."""
    return plan.table.records if plan.table else kafka_read.planned(plan.read)
