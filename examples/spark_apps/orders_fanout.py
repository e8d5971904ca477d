"""Orders from Kafka, each as a table and as an event: what does not parse is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = "order_id string, customer string, amount decimal(12,2), currency string, ts timestamp"


def fanout(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    """The same orders in three shapes. The events of a customer have one key, so they stay in order."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    orders = batch.select(F.explode(F.array(order)).alias("o")).where("o.order_id is not null").select("o.*")
    return {
        "lake": orders.withColumn("day", F.to_date("ts")),
        "events": orders.select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value")),
        "database": orders,
    }
