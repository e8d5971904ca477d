"""Sales from Kafka: ``{"shop": …, "amount": …, "ts": …}``. What is no sale goes to ``rejected``, with the reason."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import windowed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

SALE = "shop string, amount decimal(12, 2), ts timestamp"
ORIGIN = ("topic", "partition", "offset")
EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)


def hourly(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """An hour is shown when it is over, and shown again whenever a sale of up to two hours later corrects it."""
    rows = epoch.event_time(_parsed(batch, epoch), "ts")
    w = windowed(
        rows.where("reason is null").drop("value", "reason"),
        state["open"],
        epoch,
        time="ts",
        size=timedelta(hours=1),
        lateness=timedelta(hours=2),
        keys=["shop"],
        agg=[F.count("*").alias("sales"), F.sum("amount").alias("revenue")],
        merge=[F.sum("sales").alias("sales"), F.sum("revenue").alias("revenue")],
    )
    rejected = rows.where("reason is not null").select(F.col("reason").alias("error"), *ORIGIN)
    return {"hourly": w.out, "late": w.late, "open": w.changes, "rejected": rejected}


def _parsed(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    parsed = F.explode(F.array(F.from_json(F.col("value").cast("string"), SALE)))
    rows = batch.select(*ORIGIN, "value", parsed.alias("r")).select(*ORIGIN, "value", "r.*")
    return rows.withColumn("reason", _reason(epoch.now + timedelta(hours=1)))


def _reason(latest: datetime) -> Column:
    """Why a record is no sale; null if it is one."""
    return (
        F.when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("shop").isNull(), "no shop")
        .when(F.col("amount").isNull(), "no amount")
        .when(F.col("ts").isNull(), "no timestamp")
        # the state would wait for such a time for years
        .when(~F.col("ts").between(F.lit(EARLIEST), F.lit(latest)), "a time before 1970, or to come")
    )
