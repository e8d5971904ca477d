"""Transforms with state: counts per page and hour, in plain DataFrame code."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SIZE = 100_000_000
"""Of a window, in microseconds."""


def clicks(batch: DataFrame, epoch: Any) -> DataFrame:
    parsed = F.from_json(F.col("value").cast("string"), "page string, n bigint, ts timestamp")
    return epoch.event_time(batch.select("topic", "partition", "offset", parsed.alias("o")).select("*", "o.*"), "ts")


def bare(batch: DataFrame, epoch: Any) -> DataFrame:
    """One frame, for the only sink that is not one for dead letters."""
    return clicks(batch, epoch).select("page", "n")


def upserts(batch: DataFrame, epoch: Any) -> dict[str, DataFrame]:
    """The clicks for each upsert, in a pipeline without event time."""
    parsed = F.from_json(F.col("value").cast("string"), "page string, n bigint, ts timestamp")
    rows = batch.select(parsed.alias("o")).select("o.page", "o.n", F.unix_seconds("o.ts").alias("nth"))
    return dict.fromkeys(("ordered", "db_plain", "db_ordered"), rows)


def copied_upserts(batch: DataFrame, epoch: Any) -> dict[str, DataFrame]:
    found = upserts(batch, epoch)
    return found | {f"{name}_new": rows for name, rows in found.items()}


def windows(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """Close first, from the state alone; then add what is not late. A window is shown once, when it is over."""
    rows, before = clicks(batch, epoch), state["open"]
    start = F.floor(F.unix_micros("ts") / SIZE) * SIZE
    framed = rows.select(
        "*",
        F.timestamp_micros(start).alias("window_start"),
        F.timestamp_micros(start + SIZE).alias("window_end"),
    )
    closed = _up_to("window_end", epoch.watermark)
    keys = ["page", "window_start", "window_end"]
    fresh = framed.where(~closed).groupBy(*keys).agg(F.count("*").alias("clicks"), F.sum("n").alias("total"))
    touched = before.where(~closed).join(fresh.select(*keys), keys, "left_semi")
    changed = (
        touched.unionByName(fresh).groupBy(*keys).agg(F.sum("clicks").alias("clicks"), F.sum("total").alias("total"))
    )
    over = before.where(closed & ~_up_to("window_end", epoch.previous_watermark))
    return {
        "hourly": over,
        "late": framed.where(closed).select("partition", "offset", "page"),
        "open": changed.withColumn("__deleted", F.lit(False)),
    }


def unique(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """The first click of each page and n: what comes out depends on the keys that this very epoch adds to the state."""
    rows = clicks(batch, epoch)
    [(name, seen)] = state.items()
    first = rows.groupBy("page", "n").agg(F.min(F.struct("ts", "partition", "offset")).alias("f"))
    new = first.select("page", "n", "f.*").join(seen, ["page", "n"], "left_anti")
    return {"firsts": new, name: new.select("page", "n", F.lit(False).alias("__deleted"))}


def unique_twice(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """As ``unique``, by two states, each with an output of its own."""
    pages = clicks(batch, epoch).select("page", "n").distinct()
    seen, also = (pages.join(state[name], ["page", "n"], "left_anti") for name in ("seen", "also"))
    changes = {name: new.withColumn("__deleted", F.lit(False)) for name, new in (("seen", seen), ("also", also))}
    return {"firsts": seen, "firsts_again": also, **changes}


def firsts(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """As ``unique``, and the same rows for an upsert."""
    found = unique(batch, epoch, state)
    return {**found, "newest": found["firsts"]}


def copied_firsts(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """As ``firsts``, and the same rows for sinks that are added later."""
    found = firsts(batch, epoch, state)
    return {**found, "firsts_again": found["firsts"], "newest_again": found["newest"]}


def copied_windows(batch: DataFrame, epoch: Any, state: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """As ``windows``, and the same rows for sinks that are added later."""
    found = windows(batch, epoch, state)
    return {**found, "hourly_again": found["hourly"], "late_again": found["late"]}


def stateless(batch: DataFrame, epoch: Any) -> DataFrame:
    """The same columns as ``unique`` shows, without state."""
    columns = ["n bigint", "ts timestamp", "partition int", "offset bigint"]
    return batch.selectExpr("'x' as page", *(f"cast(null as {c.split()[1]}) as {c.split()[0]}" for c in columns))


def _up_to(column: str, mark: Any) -> Any:
    return F.lit(False) if mark is None else F.col(column) <= F.lit(mark)
