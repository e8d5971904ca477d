"""Records ``id|note|seconds``, as they come: some of them no table or topic could take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

ORIGIN = ("topic", "partition", "offset")


def _parts(text: Column) -> list[Column]:
    """The three parts, in a way that leaves the bytes as they are."""
    return [F.substring_index(F.substring_index(text, "|", number), "|", -1) for number in (1, 2, 3)]


def split(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Each record as a row of two tables and as an event; what has no three parts goes to ``rejected``."""
    text = F.col("value").cast("string")
    is_row = F.coalesce(F.size(F.split(text, "\\|")) == 3, F.lit(False))
    first, note, last = _parts(text)
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


def noted(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """A table alone, and what has no three parts."""
    frames = split(batch, epoch)
    return {name: frames[name] for name in ("database", "rejected")}


def shaky(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Some rows are too long: another number of them in each task that computes them, by its id."""
    lengths = ("fine", "much too long a note")
    note = F.udf(lambda value: lengths[int(value) < TaskContext.get().taskAttemptId() % 197])("value")
    return {"database": batch.select(epoch.record, F.col("value").cast("string").alias("id"), note.alias("note"))}


def people(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Changes of people, as their JSON says."""
    told = F.from_json(F.col("value").cast("string"), "id string, op string, note string, seq bigint").alias("o")
    return {"people": batch.select(epoch.record, told).select("__record", "o.*")}


def quoting(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """No record can be parsed, and the error quotes it."""
    error = F.concat(F.lit("not JSON: "), F.col("value").cast("string")).alias("error")
    return {"lake": batch.where("false").select("value"), "rejected": batch.select(*ORIGIN, error)}


def news(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Rows with columns of their own that are called as those of a record."""
    columns = [part.alias(name) for part, name in zip(_parts(F.col("value").cast("string")), ORIGIN, strict=True)]
    return {"lake": batch.select(*columns)}
