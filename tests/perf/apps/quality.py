"""Rows of parsed orders, all of them good, or one of a hundred with a text that is no text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

ORDER = "key long, amount long, ts timestamp, note string"


def good(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    order = F.from_json(F.col("value").cast("string"), ORDER)
    return {"rows": batch.select(epoch.record, order.alias("o")).select("__record", "o.*")}


def some_bad(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    note = F.expr("if(__record.offset % 100 = 0, cast(unhex('FF') as string), note)")
    return {"rows": good(batch, epoch)["rows"].withColumn("note", note)}
