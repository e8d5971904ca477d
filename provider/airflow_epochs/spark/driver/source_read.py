"""The epoch's input, whatever kind of source it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs.spark.driver import kafka_read
from airflow_epochs.spark.driver.delta import table_read
from airflow_epochs.spark.driver.plans import StagePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def batch(spark: SparkSession, plan: StagePlan, secrets: dict[str, str]) -> DataFrame:
    """The batch as a lazy DataFrame."""
    return table_read.batch(spark, plan.table) if plan.table else kafka_read.batch(spark, plan.read, secrets)


def planned(plan: StagePlan) -> int:
    """About how many records there are in the batch."""
    return plan.table.records if plan.table else kafka_read.planned(plan.read)
