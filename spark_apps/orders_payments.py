"""Orders and payments, from two topics: ``{"order_id": …, "amount": …, "ts": …}``. Others go to ``rejected``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import interval_join

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

RECORD = "order_id string, amount decimal(12, 2), ts timestamp"
ORIGIN = ("topic", "partition", "offset")


def paid(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """An order with each payment that comes up to an hour after it, in whatever order the two arrive."""
    rows = epoch.event_time(_parsed(batch), "ts")
    good = rows.where("reason is null").drop("raw", "reason")
    renamed = {"amount": "paid", "ts": "paid_at", "partition": "paid_partition", "offset": "paid_offset"}
    j = interval_join(
        good.where("topic = 'orders'").drop("topic"),
        good.where("topic = 'payments'").drop("topic").withColumnsRenamed(renamed),
        state["orders_waiting"],
        state["payments_waiting"],
        epoch,
        on=["order_id"],
        left_time="ts",
        right_time="paid_at",
        within=timedelta(hours=1),
    )
    rejected = rows.where("reason is not null").select("raw", "reason", *ORIGIN)
    return {
        "paid": j.out.select("order_id", "amount", "ts", "paid", "paid_at"),
        "late_orders": j.left_late,
        "late_payments": j.right_late,
        "orders_waiting": j.left_changes,
        "payments_waiting": j.right_changes,
        "rejected": rejected,
    }


def _parsed(batch: DataFrame) -> DataFrame:
    text = F.col("value").cast("string")
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    parsed = F.explode(F.array(F.from_json(text, RECORD)))
    rows = batch.select(*ORIGIN, text.alias("raw"), parsed.alias("r")).select(*ORIGIN, "raw", "r.*")
    return rows.withColumn("reason", _reason())


def _reason() -> Column:
    """Why a record is no order and no payment; null if it is one."""
    return (
        F.when(F.col("order_id").isNull(), "no order id")
        .when(F.col("amount").isNull(), "no amount")
        .when(F.col("ts").isNull(), "no timestamp")
    )
