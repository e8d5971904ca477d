"""Finds the function that stages the rows of one sink, by the kind of the sink's plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.delta import jobs as delta_jobs
from airflow_epochs.spark.driver.delta import merge as delta_merge
from airflow_epochs.spark.driver.delta import newest as delta_newest
from airflow_epochs.spark.driver.delta import session as delta_session
from airflow_epochs.spark.driver.delta import state as delta_state
from airflow_epochs.spark.driver.delta.plans import DeltaChangeStaging, DeltaStaging, NewestStaging, StateStaging
from airflow_epochs.spark.driver.plans import SinkOutcome, StateRead
from airflow_epochs.spark.driver.wire import JsonDict, from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


P = TypeVar("P", bound=DeltaStaging)
StageSink = Callable[["SparkSession", delta_session.StageJob, "DataFrame"], SinkOutcome]
Stager = Callable[[JsonDict, "StateRead | None"], StageSink]
"""Takes the JSON plan of one sink, and the state that the epoch reads of it; returns the function that stages it."""


def _stages(
    kind: type[P], stage_sink: Callable[[SparkSession, P, delta_session.StageJob, DataFrame], SinkOutcome]
) -> Stager:
    def understood(told: JsonDict, read: StateRead | None) -> StageSink:
        plan = from_json(kind, told)

        def staged(spark: SparkSession, job: delta_session.StageJob, frame: DataFrame) -> SinkOutcome:
            as_0_1 = replace(plan, optimize_write=False, layout=None)
            return stage_sink(spark, as_0_1 if job.files_of_0_1 else plan, job, frame)

        return staged

    return understood


def _stages_state(told: JsonDict, read: StateRead | None) -> StageSink:
    plan = from_json(StateStaging, told)
    assert read is not None

    def staged(spark: SparkSession, job: delta_session.StageJob, frame: DataFrame) -> SinkOutcome:
        return delta_state.stage_sink(spark, plan, read, job, frame)

    return staged


STAGERS: dict[str, Stager] = {
    DeltaStaging.kind: _stages(DeltaStaging, delta_jobs.stage_sink),
    DeltaChangeStaging.kind: _stages(DeltaChangeStaging, delta_merge.stage_sink),
    NewestStaging.kind: _stages(NewestStaging, delta_newest.stage_sink),
    StateStaging.kind: _stages_state,
}
"""Kind of a sink's plan -> its stager."""


def stager(kind: str) -> Stager:
    """The stager for a sink's plan of this kind."""
    if kind not in STAGERS:
        raise Refused(
            f"Spark's driver cannot stage a sink of kind {kind!r}. It can stage {', '.join(sorted(STAGERS))}.",
            code=codes.SPARK_VERSION_MIXED,
        )
    return STAGERS[kind]
