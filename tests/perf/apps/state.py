"""The benchmark's transforms: amounts per key, of the epoch alone, or as state from epoch to epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATE = "key bigint, n bigint, total bigint, last bigint, name string"


def sums(batch: DataFrame, epoch: object) -> DataFrame:
    rows = batch.select(F.from_json(F.col("value").cast("string"), "key bigint, amount bigint").alias("r"), "offset")
    return rows.groupBy("r.key").agg(
        F.count("*").alias("n"), F.sum("r.amount").alias("total"), F.max("offset").alias("last")
    )


def totals(batch: DataFrame, epoch: object, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    new = sums(batch, epoch)
    touched = state["totals"].join(new.select("key"), "key", "left_semi")
    both = new.withColumn("name", F.lit("new")).unionByName(touched)
    merged = both.groupBy("key").agg(
        F.sum("n").alias("n"), F.sum("total").alias("total"), F.max("last").alias("last"), F.min("name").alias("name")
    )
    return {"totals": merged.withColumn("__deleted", F.lit(False))}
