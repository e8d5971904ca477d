"""The benchmark's transforms: parsed orders for one sink or for three, with and without event time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = "key bigint, amount bigint, ts timestamp, note string"


def without_1(batch: DataFrame, epoch: Any) -> DataFrame:
    return _parsed(batch)


def watched_1(batch: DataFrame, epoch: Any) -> DataFrame:
    return epoch.event_time(_parsed(batch), "ts")


def without_3(batch: DataFrame, epoch: Any) -> dict[str, DataFrame]:
    return _three(_parsed(batch))


def watched_3(batch: DataFrame, epoch: Any) -> dict[str, DataFrame]:
    return _three(epoch.event_time(_parsed(batch), "ts"))


def _parsed(batch: DataFrame) -> DataFrame:
    return batch.select(F.from_json(F.col("value").cast("string"), ORDER).alias("r"), "partition").select(
        "r.*", "partition"
    )


def _three(rows: DataFrame) -> dict[str, DataFrame]:
    sums = rows.groupBy("key").agg(F.sum("amount").alias("total"))
    return {"rows": rows, "large": rows.where("key > 900"), "sums": sums}
