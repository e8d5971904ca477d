"""Readings of sensors from Kafka: ``{"sensor": …, "seq": …, "celsius": …, "ts": …}``. Others go to ``rejected``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import dedupe

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

READING = "sensor string, seq bigint, celsius decimal(6, 2), ts timestamp"
ORIGIN = ("topic", "partition", "offset")


def unique(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """A reading of a sensor passes once, however often the sensor repeats it within an hour."""
    rows = epoch.event_time(_parsed(batch), "ts")
    d = dedupe(
        rows.where("reason is null").drop("raw", "reason"),
        state["seen"],
        epoch,
        time="ts",
        keys=["sensor", "seq"],
        within=timedelta(hours=1),
        order=ORIGIN,
    )
    rejected = rows.where("reason is not null").select("raw", "reason", *ORIGIN)
    return {"readings": d.out, "late": d.late, "seen": d.changes, "rejected": rejected}


def _parsed(batch: DataFrame) -> DataFrame:
    text = F.col("value").cast("string")
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    parsed = F.explode(F.array(F.from_json(text, READING)))
    rows = batch.select(*ORIGIN, text.alias("raw"), parsed.alias("r")).select(*ORIGIN, "raw", "r.*")
    return rows.withColumn("reason", _reason())


def _reason() -> Column:
    """Why a record is no reading; null if it is one."""
    return (
        F.when(F.col("sensor").isNull(), "no sensor")
        .when(F.col("seq").isNull(), "no number")
        .when(F.col("celsius").isNull(), "no temperature")
        .when(F.col("ts").isNull(), "no timestamp")
    )
