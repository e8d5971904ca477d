"""Records ``id|note|seconds``, as they come: some of them no table or topic could take."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

ORIGIN = ("topic", "partition", "offset")


def split(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Each record as a row of two tables and as an event; what has no three parts goes to ``rejected``."""
    text = F.col("value").cast("string")
    is_row = F.coalesce(F.size(F.split(text, "\\|")) == 3, F.lit(False))
    first, note, last = (
        F.substring_index(F.substring_index(text, "|", number), "|", -1)
        for number in (1, 2, 3)  # which leaves the bytes as they are
    )
    rows = batch.where(is_row).select(
        epoch.record, first.alias("id"), note.alias("note"), F.timestamp_seconds(last.cast("bigint")).alias("at")
    )
    return {
        "lake": rows,
        "database": rows,
        "events": rows.select("__record", F.col("id").alias("key"), F.col("note").alias("value")),
        "rejected": batch.where(~is_row).select(*ORIGIN, F.lit("not three parts").alias("error")),
    }


def anonymous(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """The rows do not tell which records they are made of, and the transform finds no fault with any."""
    frames = split(batch, epoch)
    return {"database": frames["database"].drop("__record")}


def shaky(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Some rows are too long, other ones each time."""
    note = F.udf(lambda value: random.choice(["fine", "much too long a note"]))("value")
    return {"database": batch.select(epoch.record, F.col("value").cast("string").alias("id"), note.alias("note"))}
