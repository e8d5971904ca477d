"""A transform with state whose key is a floating-point number: NaN, and zeros of both signs."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_epochs.transforms import stateful


def counted(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """How many clicks a number has had. The pages are called as numbers are."""
    page = F.get_json_object(F.col("value").cast("string"), "$.page")
    rows = batch.select(page.cast("double").alias("x"))
    counts = stateful(rows, state["counts"], epoch, keys=["x"], func=_counted, out="n bigint")
    return {"shown": counts.out, "counts": counts.changes}


def _counted(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
    import pandas as pd

    counted = pd.DataFrame({"n": [len(rows) + (state["n"][0] if len(state) else 0)]})
    return counted, counted
