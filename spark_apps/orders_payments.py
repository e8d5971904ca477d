"""Orders and payments, from two topics: ``{"order_id": …, "amount": …, "ts": …}``. Others go to ``rejected``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_epochs.transforms import interval_join

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

RECORD = "order_id string, amount decimal(12, 2), ts timestamp"
ORIGIN = ("topic", "partition", "offset")
EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)


def paid(batch: DataFrame, epoch: EpochContext, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """An order with each payment that comes up to an hour after it, in whatever order the two arrive."""
    rows = epoch.event_time(_parsed(batch, epoch), "ts")
    good = rows.where("reason is null").drop("value", "reason")
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
    rejected = rows.where("reason is not null").select(F.col("reason").alias("error"), *ORIGIN)
    return {
        "paid": j.out.select("order_id", "amount", "ts", "paid", "paid_at"),
        "late_orders": j.left_late,
        "late_payments": j.right_late,
        "orders_waiting": j.left_changes,
        "payments_waiting": j.right_changes,
        "rejected": rejected,
    }


def _parsed(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    parsed = F.explode(F.array(F.from_json(F.col("value").cast("string"), RECORD)))
    rows = batch.select(*ORIGIN, "value", parsed.alias("r")).select(*ORIGIN, "value", "r.*")
    return rows.withColumn("reason", _reason(epoch.now + timedelta(hours=1)))


def _reason(latest: datetime) -> Column:
    """Why a record is no order and no payment; null if it is one."""
    return (
        F.when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("order_id").isNull(), "no order id")
        .when(F.col("amount").isNull(), "no amount")
        .when(F.col("ts").isNull(), "no timestamp")
        # the state would wait for such a time for years
        .when(~F.col("ts").between(F.lit(EARLIEST), F.lit(latest)), "a time before 1970, or to come")
    )
