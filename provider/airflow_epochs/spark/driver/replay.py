"""Replays earlier epochs for a sink that is new to its pipeline: each one with the facts of its own.

The transform runs once for each epoch, and the sink takes all that the runs return as the rows of its first epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver import source_read, transform
from airflow_epochs.spark.driver.delta import state as delta_state
from airflow_epochs.spark.driver.plans import StagePlan
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH, _NEWEST = "__epochs_epoch", "__epochs_newest"


def with_earlier(
    spark: SparkSession,
    plan: StagePlan,
    secrets: dict[str, str],
    users: transform.LoadedTransform,
    own: Mapping[str, DataFrame],
    letters: str | None,
) -> dict[str, DataFrame]:
    """For each sink, the rows of all earlier epochs of the plan, and ``own``, the rows of the plan's epoch.

    ``letters``: the sink of the dead letters, which the transform need not return; None: the pipeline has no such sink.

    Raises:
        Refused: As ``LoadedTransform``.
    """
    earlier = [(each.epoch, _returned(spark, each, secrets, users, own, letters)) for each in plan.earlier]
    every = [*earlier, (plan.epoch, own)]
    return {
        name: _together([(epoch, frames[name]) for epoch, frames in every], plan.replaces_by.get(name, ()))
        for name in own
    }


def _returned(
    spark: SparkSession,
    plan: StagePlan,
    secrets: dict[str, str],
    users: transform.LoadedTransform,
    sinks: Mapping[str, DataFrame],
    letters: str | None,
) -> Mapping[str, DataFrame]:
    batch = source_read.batch(spark, plan, secrets)
    state = delta_state.frames(spark, delta_state.understood(spark, plan.state))
    return users(batch, transform.EpochContext.of(plan), plan.outputs, sinks, state, letters)


def _together(frames: Sequence[tuple[int, DataFrame]], by: tuple[str, ...]) -> DataFrame:
    """The rows of all epochs. If ``by`` names columns, only the newest epoch's rows for equal values of these."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not {name.lower() for name in by} <= {name.lower() for name in frames[0][1].columns}:
        by = ()  # the sink will say what its rows lack
    if not by:
        return reduce(lambda one, other: one.unionByName(other), [frame for _, frame in frames])
    told = [frame.withColumn(_EPOCH, F.lit(epoch)) for epoch, frame in frames]
    rows = reduce(lambda one, other: one.unionByName(other), told)
    newest = F.max(_EPOCH).over(Window.partitionBy(*map(quoted, by)))
    return rows.withColumn(_NEWEST, newest).where(f"{_EPOCH} = {_NEWEST}").drop(_EPOCH, _NEWEST)
