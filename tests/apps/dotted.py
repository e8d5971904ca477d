"""A transform with state whose columns have dots in their names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_epochs.transforms import sessionize, stateful


def visits(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """Sessions of a page, and how many clicks it has had in all."""
    parsed = F.from_json(F.col("value").cast("string"), "page string, n bigint, ts timestamp")
    clicks = batch.select("partition", parsed.alias("o")).select(
        "partition", F.col("o.page").alias("the.page"), F.col("o.ts").alias("at.ts")
    )
    rows = epoch.event_time(clicks, "at.ts")
    sessions = sessionize(
        rows,
        state["sessions"],
        epoch,
        time="at.ts",
        keys=["the.page"],
        gap=timedelta(seconds=30),
        agg=[F.count("*").alias("a.n")],
        merge=[F.sum(F.col("`a.n`")).alias("a.n")],
    )
    counts = stateful(
        rows,
        state["counts"],
        epoch,
        keys=["the.page"],
        func=_counted,
        out="`the.page` string, `a.n` bigint",
        time="at.ts",
    )
    return {"sessions": sessions.changes, "counts": counts.changes, "over": sessions.out, "counted": counts.out}


def _counted(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
    import pandas as pd

    known = state["a.n"][0] if len(state) else 0
    counted = pd.DataFrame({"the.page": [key[0]], "a.n": [known + len(rows)]})
    return counted, counted
