"""Stages the newest row of each key, for an upsert whose commit copies rows into a database."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta import conditions, session, staged
from airflow_epochs.spark.driver.delta import keys as delta_keys
from airflow_epochs.spark.driver.delta.jobs import write_staged
from airflow_epochs.spark.driver.delta.plans import NewestStaging
from airflow_epochs.spark.driver.plans import SinkOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stage_sink(spark: SparkSession, plan: NewestStaging, job: session.StageJob, df: DataFrame) -> SinkOutcome:
    """Stage one row per key.

    The ``problem`` may be a column that is missing, a condition that is not valid, or keys without a clear newest row.
    """
    if problem := conditions.misfit(df, plan.how):
        return SinkOutcome(place=plan.place, problem=problem)
    claim = write_staged(plan, job, delta_keys.newest_or_tied(df, plan.how))
    if claim.problem is None and plan.how.sequence_by:
        return replace(claim, problem=delta_keys.problem(staged.rows(spark, plan.place), plan.how))
    return claim
