"""Transforms whose rows have expectations: the clicks as they are, for one sink or for two."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def clicks(batch: DataFrame, epoch: Any) -> DataFrame:
    parsed = F.from_json(F.col("value").cast("string"), "page string, n bigint")
    return batch.select(parsed.alias("o")).select("o.*")


def doubled(batch: DataFrame, epoch: Any) -> dict[str, DataFrame]:
    rows = clicks(batch, epoch)
    return {"clicks": rows, "newest": rows.groupBy("page").agg(F.max("n").alias("n"))}


def keyed(batch: DataFrame, epoch: Any) -> dict[str, DataFrame]:
    return {"keyed": clicks(batch, epoch)}


def digested(batch: DataFrame, epoch: Any) -> dict[str, DataFrame]:
    return {"keyed": clicks(batch, epoch).withColumn("page", F.sha2("page", 256))}
