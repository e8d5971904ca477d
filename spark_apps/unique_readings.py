"""Readings of sensors from Kafka: ``{"sensor": …, "seq": …, "celsius": …, "ts": …}``. Others go to ``rejected``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import dedupe

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

READING = "sensor string, seq bigint, celsius decimal(6, 2), ts timestamp"
ORIGIN = ("topic", "partition", "offset")
EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)


def unique(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """A reading of a sensor passes once, however often the sensor repeats it within an hour."""
    rows = epoch.event_time(_parsed(batch, epoch), "ts")
    d = dedupe(
        rows.where("reason is null").drop("value", "reason"),
        state["seen"],
        epoch,
        time="ts",
        keys=["sensor", "seq"],
        within=timedelta(hours=1),
        order=ORIGIN,
    )
    rejected = rows.where("reason is not null").select(F.col("reason").alias("error"), *ORIGIN)
    return {"readings": d.out, "late": d.late, "seen": d.changes, "rejected": rejected}


def _parsed(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    parsed = F.explode(F.array(F.from_json(F.col("value").cast("string"), READING)))
    rows = batch.select(*ORIGIN, "value", parsed.alias("r")).select(*ORIGIN, "value", "r.*")
    return rows.withColumn("reason", _reason(epoch.now + timedelta(hours=1)))


def _reason(latest: datetime) -> Column:
    """Why a record is no reading; null if it is one."""
    return (
        F.when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("sensor").isNull(), "no sensor")
        .when(F.col("seq").isNull(), "no number")
        .when(F.col("celsius").isNull(), "no temperature")
        .when(F.col("ts").isNull(), "no timestamp")
        # the state would wait for such a time for years
        .when(~F.col("ts").between(F.lit(EARLIEST), F.lit(latest)), "a time before 1970, or to come")
    )
