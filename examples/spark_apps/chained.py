"""Orders, enriched by one pipeline and summed up by the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"
ENRICHED = "order_id string, customer string, euros decimal(12,2)"
EUROS = {"EUR": "1.00", "CHF": "1.05", "GBP": "1.15", "USD": "0.90"}


def enrich(batch: DataFrame, epoch: object) -> DataFrame:
    """Orders in euros, as events keyed by customer."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    orders = batch.select(F.explode(F.array(order)).alias("o")).where("o.order_id is not null").select("o.*")
    rates = F.create_map(*(F.lit(part) for pair in EUROS.items() for part in pair))
    euros = (F.col("amount") * rates[F.col("currency")].cast("decimal(12,2)")).cast("decimal(12,2)")
    event = F.to_json(F.struct("order_id", "customer", euros.alias("euros")))
    return orders.select(F.col("customer").alias("key"), event.alias("value"))


def totals(batch: DataFrame, epoch: object) -> DataFrame:
    """One row per customer of the epoch: what there is to add."""
    order = F.from_json(F.col("value").cast("string"), ENRICHED)
    orders = batch.select(F.explode(F.array(order)).alias("o")).select("o.*")
    return orders.groupBy("customer").agg(
        F.count("*").alias("orders"), F.sum("euros").cast("decimal(20,2)").alias("amount")
    )
