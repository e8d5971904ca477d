"""All jobs that Spark runs for this package, by name: JSON in, JSON out. Connect and spark-submit run the same."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.stage import stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JsonDict = dict[str, Any]
Job = Callable[["SparkSession", JsonDict, dict[str, str]], JsonDict]


def _delta(name: str, module: str = "jobs") -> Job:
    def job(spark: SparkSession, args: JsonDict, secrets: dict[str, str]) -> JsonDict:
        return cast(JsonDict, getattr(import_module(f"airflow_epochs.spark.driver.delta.{module}"), name)(spark, args))

    return job


JOBS: dict[str, Job] = {
    "stage": stage,
    **{name: _delta(name) for name in ("delta_commit", "delta_marker", "delta_describe", "delta_optimize")},
    "delta_change": _delta("delta_change", "merge"),
    "delta_thin_notes": _delta("delta_thin_notes", "deletions"),
}


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
    return JOBS[kind](spark, args, secrets)
