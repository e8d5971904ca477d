"""All jobs that Spark runs for this package, by name: JSON in, JSON out. Connect and spark-submit run the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.delta import plans as delta_plans
from airflow_epochs.spark.driver.delta import session
from airflow_epochs.spark.driver.delta.deletions import delta_thin_notes
from airflow_epochs.spark.driver.delta.fence import delta_fence
from airflow_epochs.spark.driver.delta.jobs import delta_commit, delta_describe, delta_marker, delta_optimize
from airflow_epochs.spark.driver.delta.merge import delta_change, delta_forget
from airflow_epochs.spark.driver.plans import JobPlan, StagePlan
from airflow_epochs.spark.driver.readiness import CheckPlan, ReadPlan, check, read
from airflow_epochs.spark.driver.stage import stage
from airflow_epochs.spark.driver.wire import Dataclass, JsonDict, as_json, from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = TypeVar("P", bound=JobPlan)
Job = Callable[["SparkSession", JsonDict, dict[str, str]], JsonDict]


def _stage(spark: SparkSession, args: JsonDict, secrets: dict[str, str]) -> JsonDict:
    return as_json(stage(spark, from_json(StagePlan, args), secrets))


def _read(spark: SparkSession, args: JsonDict, secrets: dict[str, str]) -> JsonDict:
    return as_json(read(spark, from_json(ReadPlan, args), secrets))


def _without_secrets(kind: type[P], run: Callable[[SparkSession, P], Dataclass]) -> Job:
    return lambda spark, args, secrets: as_json(run(spark, from_json(kind, args)))


JOBS: dict[str, Job] = {
    StagePlan.JOB: _stage,
    CheckPlan.JOB: _without_secrets(CheckPlan, check),
    ReadPlan.JOB: _read,
    delta_plans.CommitPlan.JOB: _without_secrets(delta_plans.CommitPlan, delta_commit),
    delta_plans.ChangePlan.JOB: _without_secrets(delta_plans.ChangePlan, delta_change),
    delta_plans.ForgetPlan.JOB: _without_secrets(delta_plans.ForgetPlan, delta_forget),
    delta_plans.FencePlan.JOB: _without_secrets(delta_plans.FencePlan, delta_fence),
    delta_plans.DescribePlan.JOB: _without_secrets(delta_plans.DescribePlan, delta_describe),
    delta_plans.MarkerPlan.JOB: _without_secrets(delta_plans.MarkerPlan, delta_marker),
    delta_plans.OptimizePlan.JOB: _without_secrets(delta_plans.OptimizePlan, delta_optimize),
    delta_plans.ThinNotesPlan.JOB: _without_secrets(delta_plans.ThinNotesPlan, delta_thin_notes),
}
"""Job name -> a function that decodes the plan from JSON, runs the job, and returns its report as JSON."""


def run(spark: SparkSession, kind: str, args: JsonDict, secrets: dict[str, str]) -> JsonDict:
    """Run one job to its end. If it raises, readers see nothing of it, unless it is a job that commits.

    Raises:
        Refused: There is no such job: the task and Spark's driver run different versions of this package.
    """
    if kind not in JOBS:
        raise Refused(
            f"The task asks Spark's driver for the job {kind!r}, which the driver does not have.",
            code=codes.SPARK_VERSION_MIXED,
        )
    session.read_every_row(spark)
    return JOBS[kind](spark, args, secrets)
