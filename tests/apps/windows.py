"""Clicks through the operators that keep a state."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clicks import clicks
from pyspark.sql import functions as F

from airflow_epochs.transforms import sessionize, stateful, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_epochs.transforms import Result

SIZE = timedelta(seconds=100)
GAP = timedelta(seconds=20)
"""A pause after which a session ends."""
COUNTED = "page string, calls bigint, clicks bigint, total bigint"


def hourly(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """Windows, with the aggregates that the state has columns for, and with its type of a page."""
    [(name, before)] = state.items()
    w = _windows(clicks(batch, epoch), before, epoch)
    shown = w.out.withColumn("page", F.col("page").cast("string"))
    return {"hourly": shown, "late": _places(w.late), name: w.changes}


def skewed(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """Windows, and how many clicks each page has had, by a function in pandas."""
    rows = clicks(batch, epoch)
    w = _windows(rows, state["open"], epoch)
    counted = stateful(
        rows.select("page", "n"), state["counts"], epoch, keys=["page"], func=_count(), out=f"{COUNTED}, here bigint"
    )
    return {
        "hourly": w.out,
        "late": _places(w.late),
        "open": w.changes,
        "counted": counted.out,
        "counts": counted.changes,
    }


def chained(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """Sessions of clicks, and windows that count the sessions that end in them."""
    count, add = ([column.alias("clicks")] for column in (F.count("*"), F.sum("clicks")))
    s = sessionize(
        clicks(batch, epoch), state["sessions"], epoch, time="ts", gap=GAP, keys=["page"], agg=count, merge=add
    )
    ended = s.out.select("page", F.col("clicks").alias("n"), F.col("session_end").alias("ts"))
    w = _windows(ended, state["open"], epoch.chained())
    return {
        "hourly": w.out,
        "late": _places(s.late),
        "late_again": w.late.select("page"),
        "sessions": s.changes,
        "open": w.changes,
    }


def halting(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """``hourly``; the first attempt of an epoch never ends while there is a file ``halt`` beside this one."""
    halt = Path(__file__).with_name("halt")
    if halt.exists() and epoch.attempt == 1:
        halt.with_name("halted").write_text(f"{os.getpid()}\n")
        while halt.exists():
            time.sleep(0.1)
    return hourly(batch, epoch, state)


def _windows(rows: DataFrame, before: DataFrame, epoch: Any) -> Result:
    aggregates = {
        "clicks": (F.count("*"), F.sum("clicks")),
        "total": (F.sum("n"), F.sum("total")),
        "largest": (F.max("n"), F.max("largest")),
    }
    names = [name for name in before.columns if name in aggregates]
    typed = rows.withColumn("page", F.col("page").cast(before.schema["page"].dataType))
    agg, merge = ([aggregates[name][part].alias(name) for name in names] for part in (0, 1))
    return windowed(typed, before, epoch, time="ts", size=SIZE, keys=["page"], agg=agg, merge=merge)


def _places(rows: DataFrame) -> DataFrame:
    return rows.select("partition", "offset", F.col("page").cast("string").alias("page"))


def _count() -> Any:
    def count(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        import pandas as pd

        calls, clicks, total = (int(state[name][0]) if len(state) else 0 for name in ("calls", "clicks", "total"))
        kept = {"calls": [calls + 1], "clicks": [clicks + len(rows)], "total": [total + int(rows["n"].sum())]}
        return pd.DataFrame({"page": [key[0]], **kept, "here": [len(rows)]}), pd.DataFrame(kept)

    return count
