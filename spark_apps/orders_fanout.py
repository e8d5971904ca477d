"""Orders from Kafka, each as a table and as an event. What is no order goes to ``rejected``.

So does an order that one of the sinks would not take: a NUL character for the database, too many bytes for the topic.
The others show it. ``epoch.record`` lets the dead letter say which record that was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"
ORIGIN = ("topic", "partition", "offset")
NO_YEAR = "o.ts NOT BETWEEN timestamp'0001-01-01 00:00:00Z' AND timestamp'9999-12-31 23:59:59.999999Z'"
"""In UTC, as sinks see it: ``year`` would go by the time zone of Spark's session."""


def fanout(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """The same orders in three shapes. The events of a customer have one key, so they stay in order.

    They have no column ``value``: the sink makes JSON of all columns but the key, and keeps every digit.
    """
    text = F.col("value").cast("string")
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    order = F.explode(F.array(F.from_json(text, ORDER))).alias("o")
    judged = batch.select(epoch.record, *ORIGIN, "value", order).withColumn("error", _error())
    good = judged.where("error is null")
    orders = good.select("__record", "o.*")
    return {
        "lake": orders.withColumn("day", F.to_date("ts")),
        "events": orders.withColumn("key", F.col("customer")),
        "database": orders,
        "rejected": judged.where("error is not null").select(*ORIGIN, "error"),
    }


def _error() -> Column:
    """Why a record is no order; null if it is one."""
    return (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("o.order_id").isNull(), "not an order in JSON")
        # what is there and cannot be parsed is null, too
        .when(F.col("o.amount").isNull(), "no amount")
        .when(F.col("o.ts").isNull(), "no timestamp")
        .when(F.expr(NO_YEAR), "a year that no calendar has")
    )
