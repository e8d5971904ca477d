"""Transforms of rows that come from a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_epochs.spark.driver.transform import EpochContext

CHANGES = ("_change_type", "_commit_version", "_commit_timestamp")


def copied(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    """The rows as they are, with their epoch."""
    return batch.withColumn("epoch", F.lit(epoch.number))


def ignoring(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    """The same, by a transform that leaves out damaged files, if it should read some of its own."""
    batch.sparkSession.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    return copied(batch, epoch)


def ids_as_text(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    """The first column, whatever its name and type are, with the kind of change."""
    return batch.select(F.col(batch.columns[0]).cast("string").alias("id"), "_change_type")


def twice(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """The rows for two sinks."""
    return {"rows": copied(batch, epoch), "late": batch}


def days(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    """Some of the columns."""
    return batch.select("id", "day")


def from_topic(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    """Records whose value is a number."""
    number = F.col("value").cast("string").cast("bigint")
    return batch.select(number.alias("id"), (number / 4).alias("amount"))


def net(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    """What each change does to a count per row: 1 for one more, -1 for one less."""
    one = F.when(F.col("_change_type").isin("delete", "update_preimage"), -1).otherwise(1)
    return batch.select("id", "amount", one.alias("change"), *CHANGES)


def judged(batch: DataFrame, epoch: EpochContext) -> dict[str, DataFrame]:
    """Rows with an amount; the others are rejected."""
    bad = batch.where("amount is null").select(F.lit("no amount").alias("error"), F.to_json(F.struct("*")).alias("row"))
    return {"rows": batch.where("amount is not null").select(epoch.record, "*"), "rejected": bad}


def renamed(batch: DataFrame, epoch: EpochContext) -> DataFrame:
    """Rows of a table whose column mapping lets a name have a space."""
    return batch.select(F.col("`an id`").alias("id"), "day", "_change_type")
