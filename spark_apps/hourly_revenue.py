"""Sales from Kafka: ``{"shop": …, "amount": …, "ts": …}``. What is no sale goes to ``rejected``, with the reason."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import windowed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

SALE = "shop string, amount decimal(12, 2), ts timestamp"
ORIGIN = ("topic", "partition", "offset")


def hourly(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """An hour is shown when it is over, and shown again whenever a sale of up to two hours later corrects it."""
    text = F.col("value").cast("string")
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    sale = F.explode(F.array(F.from_json(text, SALE)))
    parsed = batch.select(*ORIGIN, text.alias("raw"), sale.alias("s")).select(*ORIGIN, "raw", "s.*")
    rows = epoch.event_time(parsed.withColumn("reason", _reason()), "ts")
    w = windowed(
        rows.where("reason is null").drop("raw", "reason"),
        state["open"],
        epoch,
        time="ts",
        size=timedelta(hours=1),
        lateness=timedelta(hours=2),
        keys=["shop"],
        agg=[F.count("*").alias("sales"), F.sum("amount").alias("revenue")],
        merge=[F.sum("sales").alias("sales"), F.sum("revenue").alias("revenue")],
    )
    rejected = rows.where("reason is not null").select("raw", "reason", *ORIGIN)
    return {"hourly": w.out, "late": w.late, "open": w.changes, "rejected": rejected}


def _reason() -> Column:
    """Why a record is no sale; null if it is one."""
    return (
        F.when(F.col("shop").isNull(), "no shop")
        .when(F.col("amount").isNull(), "no amount")
        .when(F.col("ts").isNull(), "no timestamp")
    )
