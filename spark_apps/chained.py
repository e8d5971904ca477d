"""Orders, enriched by one pipeline and summed up by the next. What either cannot use goes to its ``rejected``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"
ENRICHED = "order_id string, customer string, euros decimal(14,2)"
ORIGIN = ("topic", "partition", "offset")
EUROS = {"EUR": "1.00", "CHF": "1.05", "GBP": "1.15", "USD": "0.90"}
ORDER_BYTES_MAX = 100_000
"""An event names the customer twice, and a topic takes a megabyte."""


def enrich(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Orders in euros, as events keyed by customer."""
    rates = F.create_map(*(F.lit(part) for pair in EUROS.items() for part in pair))
    euros = (F.col("o.amount") * rates[F.col("o.currency")].cast("decimal(12,2)")).cast("decimal(14,2)")
    parsed = _parsed(batch, ORDER).withColumn("euros", euros)
    error = (
        _error()
        .when(F.col("o.amount").isNull(), "no amount")
        .when(F.col("euros").isNull(), "unknown currency")
        .when(F.col("o.ts").isNull(), "no timestamp")
        .when(~F.year("o.ts").between(1, 9999), "a year that no calendar has")
        .when(F.octet_length("value") > ORDER_BYTES_MAX, "too large for a topic")
    )
    orders, rejected = _judged(parsed, error)
    event = F.to_json(F.struct("o.order_id", "o.customer", "euros"))
    events = orders.select(epoch.record, F.col("o.customer").alias("key"), event.alias("value"))
    return {"enriched": events, "rejected": rejected}


def totals(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    """One row per customer of the epoch: what there is to add."""
    error = _error().when(F.col("o.euros").isNull(), "no amount")
    orders, rejected = _judged(_parsed(batch, ENRICHED), error)
    sums = (F.count("*").alias("orders"), F.sum("o.euros").cast("decimal(20,2)").alias("amount"))
    return {"totals": orders.groupBy("o.customer").agg(*sums), "rejected": rejected}


def _parsed(batch: DataFrame, schema: str) -> DataFrame:
    """Every record with its place, and as ``o``, what its JSON says."""
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    order = F.explode(F.array(F.from_json(F.col("value").cast("string"), schema)))
    return batch.select(*ORIGIN, "value", order.alias("o"))


def _error() -> Column:
    """Why a record is no order of a customer; null if it is one."""
    return (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("o.order_id").isNull(), "not an order in JSON")
        .when(F.col("o.customer").isNull(), "no customer")
        .when(F.concat("o.order_id", "o.customer").contains("\0"), "a NUL character")
    )


def _judged(parsed: DataFrame, error: Column) -> tuple[DataFrame, DataFrame]:
    """Records without an error, and the others."""
    judged = parsed.withColumn("error", error)
    return judged.where("error is null"), judged.where("error is not null").select("error", *ORIGIN)
