"""Orders, enriched by one pipeline and summed up by the next. What either cannot use goes to its ``rejected``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"
ENRICHED = "order_id string, customer string, euros decimal(14,2)"
ORIGIN = ("topic", "partition", "offset")
EUROS = {"EUR": "1.00", "CHF": "1.05", "GBP": "1.15", "USD": "0.90"}
ORDER_BYTES_MAX = 100_000
"""An event names the customer twice, and a topic takes a megabyte."""


def enrich(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    """Orders in euros, as events keyed by customer."""
    rates = F.create_map(*(F.lit(part) for pair in EUROS.items() for part in pair))
    euros = (F.col("o.amount") * rates[F.col("o.currency")].cast("decimal(12,2)")).cast("decimal(14,2)")
    parsed = _parsed(batch, ORDER).withColumn("euros", euros)
    reason = (
        _reason()
        .when(F.col("o.amount").isNull(), "no amount")
        .when(F.col("euros").isNull(), "unknown currency")
        .when(F.col("o.ts").isNull(), "no timestamp")
        .when(~F.year("o.ts").between(1, 9999), "a year that no calendar has")
        .when(F.octet_length("raw") > ORDER_BYTES_MAX, "too large for a topic")
    )
    orders, rejected = _judged(parsed, reason)
    event = F.to_json(F.struct("o.order_id", "o.customer", "euros"))
    return {"enriched": orders.select(F.col("o.customer").alias("key"), event.alias("value")), "rejected": rejected}


def totals(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    """One row per customer of the epoch: what there is to add."""
    reason = _reason().when(F.col("o.euros").isNull(), "no amount")
    orders, rejected = _judged(_parsed(batch, ENRICHED), reason)
    sums = (F.count("*").alias("orders"), F.sum("o.euros").cast("decimal(20,2)").alias("amount"))
    return {"totals": orders.groupBy("o.customer").agg(*sums), "rejected": rejected}


def _parsed(batch: DataFrame, schema: str) -> DataFrame:
    """Every record with its place, as text, and as ``o``, what its JSON says."""
    text = F.col("value").cast("string")
    raw = F.when(F.is_valid_utf8(text), text).otherwise(F.base64("value"))
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    order = F.explode(F.array(F.from_json(text, schema)))
    return batch.select(*ORIGIN, F.is_valid_utf8(text).alias("is_text"), raw.alias("raw"), order.alias("o"))


def _reason() -> Column:
    """Why a record is no order of a customer; null if it is one."""
    return (
        F.when(F.col("raw").isNull(), "no value")
        .when(~F.col("is_text"), "not UTF-8 (raw is base64)")
        .when(F.col("o.order_id").isNull(), "not an order in JSON")
        .when(F.col("o.customer").isNull(), "no customer")
        .when(F.concat("o.order_id", "o.customer").contains("\0"), "a NUL character")
    )


def _judged(parsed: DataFrame, reason: Column) -> tuple[DataFrame, DataFrame]:
    """Records without a reason against them, and the others."""
    judged = parsed.withColumn("reason", reason)
    return judged.where("reason is null"), judged.where("reason is not null").select("raw", "reason", *ORIGIN)
