"""Windows of clicks at several places of a chain, and windows of windows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from clicks import clicks
from pyspark.sql import functions as F

from airflow_epochs.transforms import DELETED, Result, dedupe, windowed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    Frames = dict[str, DataFrame]


def first(batch: DataFrame, epoch: Any, state: Frames) -> Frames:
    return _alone(clicks(batch, epoch), epoch, state)


def second(batch: DataFrame, epoch: Any, state: Frames) -> Frames:
    return _alone(clicks(batch, epoch), epoch.chained(), state)


def third(batch: DataFrame, epoch: Any, state: Frames) -> Frames:
    return _alone(clicks(batch, epoch), epoch.chained(2), state)


def first_unless_empty(batch: DataFrame, epoch: Any, state: Frames) -> Frames:
    rows = clicks(batch, epoch)
    if batch.isEmpty():
        none = state["open"].limit(0)
        return {"hourly": none, "late": none.select("page"), "open": none.withColumn(DELETED, F.lit(False))}
    return _alone(rows, epoch, state)


def second_twice_shown(batch: DataFrame, epoch: Any, state: Frames) -> Frames:
    found = second(batch, epoch, state)
    return found | {"again": found["hourly"]}


def chain(batch: DataFrame, epoch: Any, state: Frames) -> Frames:
    return _of_windows(clicks(batch, epoch), epoch, epoch.chained(), state)


def chain_behind_another(batch: DataFrame, epoch: Any, state: Frames) -> Frames:
    keys, within = ["partition", "offset"], timedelta(seconds=50)
    alone = dedupe(clicks(batch, epoch), state["seen"], epoch, time="ts", keys=keys, within=within)
    found = _of_windows(alone.out, epoch.chained(), epoch.chained(2), state)
    return found | {"late": alone.late.select("page"), "seen": alone.changes}


def _alone(rows: DataFrame, epoch: Any, state: Frames) -> Frames:
    hourly = _counted(rows, state["open"], epoch, 100, F.count("*"), F.sum("n"))
    return {"hourly": hourly.out, "late": hourly.late.select("page"), "open": hourly.changes}


def _of_windows(rows: DataFrame, in_front: Any, behind: Any, state: Frames) -> Frames:
    found = _alone(rows, in_front, state)
    at = (F.col("window_end") - F.expr("interval 1 microsecond")).alias("ts")
    ends = found["hourly"].select("page", "clicks", "total", at)
    daily = _counted(ends, state["days"], behind, 400, F.sum("clicks"), F.sum("total"))
    return found | {"daily": daily.out, "late_again": daily.late.select("page"), "days": daily.changes}


def _counted(rows: DataFrame, state: DataFrame, epoch: Any, seconds: int, clicks: Column, total: Column) -> Result:
    return windowed(
        rows,
        state,
        epoch,
        time="ts",
        size=timedelta(seconds=seconds),
        keys=["page"],
        agg=[clicks.alias("clicks"), total.alias("total")],
        merge=[F.sum("clicks").alias("clicks"), F.sum("total").alias("total")],
    )
