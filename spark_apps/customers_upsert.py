"""Changes of customers from Kafka: ``{"op": "I" | "U" | "D", "id": …, "name": …, "city": …, "version": …}``.

What is no such change goes to ``rejected``, with the error, as a dead letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

CHANGE = "op string, id long, name string, city string, version long"
ORIGIN = ("topic", "partition", "offset")


def changes(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """The same rows for two tables: one keeps all, the other the newest of each customer."""
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    change = F.explode(F.array(F.from_json(F.col("value").cast("string"), CHANGE)))
    judged = batch.select(epoch.record, *ORIGIN, "value", change.alias("c")).withColumn("error", _error())
    found = judged.where("error is null").select("__record", "c.*")
    rejected = judged.where("error is not null").select("error", *ORIGIN)
    return {"customers": found, "history": found, "rejected": rejected}


def _error() -> Column:
    """Why a record is no change of a customer; null if it is one."""
    return (
        F.when(F.col("value").isNull(), "no value")
        .when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.col("c.id").isNull(), "not a change in JSON")
        .when(F.col("c.op").isNull() | ~F.col("c.op").isin("I", "U", "D"), "unknown op")
        # without it, nobody could tell whether the change is the newest
        .when(F.col("c.version").isNull(), "no version")
        .when(F.concat_ws("", "c.name", "c.city").contains("\0"), "a NUL character")
    )
