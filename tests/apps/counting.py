"""Numbers, counted by operators that keep a state; here it is empty, and there is no watermark yet."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from airflow_epochs.transforms import dedupe, interval_join, sessionize, stateful, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

START = SimpleNamespace(watermark=None, previous_watermark=None)
CENTURY = timedelta(days=36_500)
GIVEN: dict[str, Any] = {"time": "timestamp", "keys": ["partition"]}


def counted(batch: DataFrame, epoch: object) -> DataFrame:
    """For each operator and each partition, how many rows it has counted, kept or paired."""
    made = {
        "windowed": windowed(batch, _open(batch, "window"), START, size=CENTURY, **GIVEN, **_counts()).changes,
        "dedupe": dedupe(batch, _state(batch, "expires timestamp"), START, within=CENTURY, **GIVEN).changes,
        "sessionize": sessionize(batch, _open(batch, "session"), START, gap=CENTURY, **GIVEN, **_counts()).changes,
        "interval_join": _paired(batch),
        "stateful": stateful(
            batch, _state(batch, "n long"), START, keys=["partition"], func=count, out="n long"
        ).changes,
    }
    number = {name: "n" if "n" in frame.columns else "1L AS n" for name, frame in made.items()}
    told = (frame.selectExpr(f"'{name}' AS operator", "partition", number[name]) for name, frame in made.items())
    return reduce(type(batch).unionAll, told)


def _state(batch: DataFrame, columns: str) -> DataFrame:
    return batch.sparkSession.createDataFrame([], f"partition int, {columns}")


def _open(batch: DataFrame, what: str) -> DataFrame:
    return _state(batch, f"{what}_start timestamp, {what}_end timestamp, n long")


def _counts() -> dict[str, Any]:
    return {"agg": [F.count("*").alias("n")], "merge": [F.sum("n").alias("n")]}


def _paired(batch: DataFrame) -> DataFrame:
    left, right = batch.select("partition", "timestamp"), batch.select("partition", F.col("timestamp").alias("other"))
    pairs = interval_join(
        left,
        right,
        _state(batch, "timestamp timestamp, expires timestamp"),
        _state(batch, "other timestamp, expires timestamp"),
        START,
        on=["partition"],
        left_time="timestamp",
        right_time="other",
        within=(CENTURY, CENTURY),
    )
    return pairs.out.groupBy("partition").agg(F.count("*").alias("n"))


def count(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
    """Count the rows."""
    import pandas as pd

    return None, pd.DataFrame({"n": [len(rows)]})
