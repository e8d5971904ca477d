"""Orders from Kafka, each as a table and as an event. What no table or topic could take goes to ``rejected``.

One record that a database refuses would stop the whole pipeline: bytes that are no UTF-8, a NUL character, a year that
it has no form for. So the transform looks for them first, and says in ``rejected`` where each came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"
ORIGIN = ("topic", "partition", "offset")
TEXTS = ("order_id", "customer", "currency")


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
        .when(has_nul, "a NUL character")
        .when(~F.year("o.ts").between(1, 9999), "a year that no calendar has")
    )
