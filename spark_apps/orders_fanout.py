"""Orders from Kafka, each as a table and as an event. What no table or topic could take goes to ``rejected``.

One record that a sink refuses would stop the whole pipeline: bytes that are no UTF-8, a NUL character, a year that a
database has no form for, more bytes than a topic takes. So the transform looks for them first, and says in ``rejected``
where each came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"
ORIGIN = ("topic", "partition", "offset")
TEXTS = ("order_id", "customer", "currency")
NO_YEAR = "o.ts NOT BETWEEN timestamp'0001-01-01 00:00:00Z' AND timestamp'9999-12-31 23:59:59.999999Z'"
"""In UTC, as sinks see it: ``year`` would go by the time zone of Spark's session."""
ORDER_BYTES_MAX = 100_000
"""An event names the customer twice, and a topic takes a megabyte."""


def fanout(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    """The same orders in three shapes. The events of a customer have one key, so they stay in order."""
    text = F.col("value").cast("string")
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    order = F.explode(F.array(F.from_json(text, ORDER))).alias("o")
    judged = batch.select(*ORIGIN, "value", order).withColumn("reason", _reason())
    orders = judged.where("reason is null").select("o.*")
    return {
        "lake": orders.withColumn("day", F.to_date("ts")),
        "events": orders.select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value")),
        "database": orders,
        "rejected": judged.where("reason is not null").select(*ORIGIN, "value", "reason"),
    }


def _reason() -> Column:
    """Why a record is no order that every sink takes; null if it is one."""
    has_nul = F.concat_ws("", *(f"o.{name}" for name in TEXTS)).contains("\0")
    return (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("o.order_id").isNull(), "not an order in JSON")
        # what is there and cannot be parsed is null, too
        .when(F.col("o.amount").isNull(), "no amount")
        .when(F.col("o.ts").isNull(), "no timestamp")
        .when(has_nul, "a NUL character")
        .when(F.expr(NO_YEAR), "a year that no calendar has")
        .when(F.octet_length("value") > ORDER_BYTES_MAX, "too large for a topic")
    )
