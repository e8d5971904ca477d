"""Orders from Kafka: what parses goes to ``orders``, what does not goes to ``rejected`` with the reason.

Every input record ends in exactly one row of exactly one of them, and that row keeps the record's topic,
partition and offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CURRENCIES = ("CHF", "EUR", "GBP", "USD")
ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"
ORIGIN = ("topic", "partition", "offset")


def orders(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    """Split a batch of Kafka records into ``orders`` and ``rejected``. Needs nothing of ``epoch``."""
    text = F.col("value").cast("string")
    readable = batch.withColumn("is_text", F.is_valid_utf8(text))
    raw = F.when(F.col("is_text"), text).otherwise(F.base64("value"))
    parsed = readable.select(*ORIGIN, "is_text", raw.alias("raw"), _once(F.from_json(text, ORDER)).alias("order"))
    judged = parsed.withColumn("reason", _reason())
    good, bad = judged.where("reason is null"), judged.where("reason is not null")
    return {
        "orders": good.select("order.*", F.to_date("order.ts").alias("day"), *ORIGIN),
        "rejected": bad.select("raw", "reason", *ORIGIN),
    }


def _once(column: Column) -> Column:
    """The same column. Spark would otherwise parse a record anew for every field that is looked at."""
    return F.explode(F.array(column))


def _reason() -> Column:
    """Why a record is no order; null if it is one."""
    currency, amount = F.col("order.currency"), F.col("order.amount")
    return (
        F.when(F.col("raw").isNull(), "no value")
        .when(~F.col("is_text"), "not UTF-8 (raw is base64)")
        .when(F.col("order.order_id").isNull(), "not an order in JSON")
        .when(F.col("order.customer").isNull(), "no customer")
        .when(amount.isNull() | (amount <= 0), "no positive amount")
        .when(currency.isNull() | ~currency.isin(*CURRENCIES), "unknown currency")
        .when(F.col("order.ts").isNull(), "no timestamp")
        # Delta would take the next two, and other tables and many readers would not:
        .when(F.concat("order.order_id", "order.customer").contains("\0"), "a NUL character")
        .when(~F.year("order.ts").between(1, 9999), "a year that no calendar has")
    )
