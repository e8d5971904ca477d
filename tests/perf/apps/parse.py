"""The benchmark's transform: five columns of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "id long, cust long, amt double, ts long, note string"


def parsed(batch: DataFrame) -> DataFrame:
    return batch.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def transform(batch: DataFrame, epoch: object) -> DataFrame:
    return parsed(batch)
