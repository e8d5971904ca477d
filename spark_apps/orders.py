"""Orders from Kafka: what parses goes to ``orders``, what does not goes to ``rejected`` with the error.

Every input record ends in exactly one row of exactly one of them, and that row keeps the record's topic,
partition and offset. Dead letters get the record itself, too.
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
    order = _once(F.from_json(F.col("value").cast("string"), ORDER))
    judged = batch.select(*ORIGIN, "value", order.alias("order")).withColumn("error", _error())
    good, bad = judged.where("error is null"), judged.where("error is not null")
    return {
        "orders": good.select("order.*", F.to_date("order.ts").alias("day"), *ORIGIN),
        "rejected": bad.select("error", *ORIGIN),
    }


def _once(column: Column) -> Column:
    """The same column. Spark would otherwise parse a record anew for every field that is looked at."""
    return F.explode(F.array(column))


def _error() -> Column:
    """Why a record is no order; null if it is one."""
    currency, amount = F.col("order.currency"), F.col("order.amount")
    return (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("order.order_id").isNull(), "not an order in JSON")
        .when(F.col("order.customer").isNull(), "no customer")
        .when(amount.isNull() | (amount <= 0), "no positive amount")
        .when(currency.isNull() | ~currency.isin(*CURRENCIES), "unknown currency")
        .when(F.col("order.ts").isNull(), "no timestamp")
        # Delta would take the next two, and other tables and many readers would not:
        .when(F.concat("order.order_id", "order.customer").contains("\0"), "a NUL character")
        .when(~F.year("order.ts").between(1, 9999), "a year that no calendar has")
    )
