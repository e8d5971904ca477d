"""Changes of customers from Kafka: ``{"op": "I" | "U" | "D", "id": …, "name": …, "city": …, "version": …}``.

What is no such change goes to ``rejected``, with the reason and the record's topic, partition and offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHANGE = "op string, id long, name string, city string, version long"
ORIGIN = ("topic", "partition", "offset")


def changes(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    """The same rows for two tables: one keeps all, the other the newest of each customer."""
    text = F.col("value").cast("string")
    is_text = F.is_valid_utf8(text)
    raw = F.when(is_text, text).otherwise(F.base64("value"))
    # exploded: Spark would otherwise parse a record anew for every field that is looked at
    change = F.explode(F.array(F.from_json(text, CHANGE)))
    parsed = batch.select(*ORIGIN, is_text.alias("is_text"), raw.alias("raw"), change.alias("c"))
    judged = parsed.withColumn("reason", _reason())
    found = judged.where("reason is null").select("c.*")
    rejected = judged.where("reason is not null").select("raw", "reason", *ORIGIN)
    return {"customers": found, "history": found, "rejected": rejected}


def _reason() -> Column:
    """Why a record is no change of a customer; null if it is one."""
    return (
        F.when(F.col("raw").isNull(), "no value")
        .when(~F.col("is_text"), "not UTF-8 (raw is base64)")
        .when(F.col("c.id").isNull(), "not a change in JSON")
        .when(F.col("c.op").isNull() | ~F.col("c.op").isin("I", "U", "D"), "unknown op")
        # without it, nobody could tell whether the change is the newest
        .when(F.col("c.version").isNull(), "no version")
        .when(F.concat_ws("", "c.name", "c.city").contains("\0"), "a NUL character")
    )
