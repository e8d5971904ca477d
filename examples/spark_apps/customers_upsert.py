"""Changes of customers from Kafka: ``{"op": "I" | "U" | "D", "id": …, "name": …, "city": …, "version": …}``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE = "op string, id long, name string, city string, version long"


def changes(batch: DataFrame, epoch: object) -> dict[str, DataFrame]:
    """The same rows for both tables: one keeps all, the other the newest of each customer."""
    change = F.from_json(F.col("value").cast("string"), CHANGE)
    found = batch.select(F.explode(F.array(change)).alias("c")).where("c.id is not null").select("c.*")
    return {"customers": found, "history": found}
