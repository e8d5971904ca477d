"""Views of pages from Kafka: ``{"visitor": …, "page": …, "ts": …}``. What is none goes to ``rejected``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import sessionize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

VIEW = "visitor string, page string, ts timestamp"
ORIGIN = ("topic", "partition", "offset")
EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)


def sessions(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """A visit is over after a pause of 30 minutes. It is shown once, when no view can belong to it any more."""
    rows = epoch.event_time(_parsed(batch, epoch), "ts")
    s = sessionize(
        rows.where("reason is null").drop("value", "reason"),
        state["open"],
        epoch,
        time="ts",
        keys=["visitor"],
        gap=timedelta(minutes=30),
        agg=[F.count("*").alias("views"), F.count_if(F.col("page") == "order").alias("orders")],
        merge=[F.sum("views").alias("views"), F.sum("orders").alias("orders")],
    )
    rejected = rows.where("reason is not null").select(F.col("reason").alias("error"), *ORIGIN)
    return {"visits": s.out, "late": s.late, "open": s.changes, "rejected": rejected}


def _parsed(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    parsed = F.explode(F.array(F.from_json(F.col("value").cast("string"), VIEW)))
    rows = batch.select(*ORIGIN, "value", parsed.alias("r")).select(*ORIGIN, "value", "r.*")
    return rows.withColumn("reason", _reason(epoch.now + timedelta(hours=1)))


def _reason(latest: datetime) -> Column:
    """Why a record is no view; null if it is one."""
    return (
        F.when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("visitor").isNull(), "no visitor")
        .when(F.col("page").isNull(), "no page")
        .when(F.col("ts").isNull(), "no timestamp")
        # the state would wait for such a time for years
        .when(~F.col("ts").between(F.lit(EARLIEST), F.lit(latest)), "a time before 1970, or to come")
    )
