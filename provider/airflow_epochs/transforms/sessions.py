"""Sessions: rows of a key with no long pause between them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_epochs.transforms.changes import Result, changes, told_late
from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import quoted
from airflow_epochs.transforms.event_time import EpochWatermarks, WatermarkPair, later, split

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

START, END = "session_start", "session_end"
_CHECKS = Checks("sessionize")
_FRESH, _FIRST, _NUMBER = "__fresh", "__first", "__number"


def sessionize(
    rows: DataFrame,
    state: DataFrame,
    epoch: EpochWatermarks,
    *,
    time: str,
    keys: Sequence[str],
    gap: timedelta,
    agg: Sequence[Column],
    merge: Sequence[Column],
) -> Result:
    """Aggregate rows by keys and sessions. A session ends ``gap`` after its last row, and is final once W is there.

    Rows that are exactly ``gap`` apart are in one session. Sessions that a row connects become one: the state loses the
    key of the later one. A row is late if the session that this epoch's rows make of it is over, and no open one of the
    state is connected to it.

    Args:
        rows: The epoch's rows.
        state: The open sessions: keys, ``session_start``, ``session_end`` and the aggregates. The table's keys are the
            keys and ``session_start``; it expires by ``session_end``.
        epoch: The transform's epoch.
        time: The column with the time of a row, a timestamp.
        keys: Columns of the rows.
        gap: The pause that ends a session.
        agg: Aggregates of rows, like ``F.count("*").alias("n")``.
        merge: Aggregates of these aggregates under the same names, like ``F.sum("n").alias("n")``.

    Returns:
        ``out`` has each session once, with the state's columns.
    """
    from pyspark.sql import functions as F

    marks, keys, pause = WatermarkPair.of(epoch, state), _CHECKS.names("keys", keys), _CHECKS.duration("gap", gap)
    _check(rows, state, time, keys)
    counting, nulls = split(rows, [time, *keys], F.lit(False), [time, later(time, pause)])
    of_keys, of_sessions = [*map(quoted, keys)], [*map(quoted, keys), START]
    alone = counting.withColumn(START, F.col(quoted(time))).withColumn(END, later(time, pause))
    connected = _connected(alone, keys)
    made = connected.groupBy(*of_sessions, END).agg(*agg)
    old = _CHECKS.in_order_of(made, state)
    fresh = _CHECKS.shaped(made, old, keys)
    near = old.where(~marks.passed(END)).join(fresh.select(*of_keys), keys, "left_semi")
    parts = near.withColumn(_FRESH, F.lit(False)).unionByName(fresh.withColumn(_FRESH, F.lit(True)))
    merged = _connected(parts, keys).groupBy(*of_sessions, END).agg(*merge, F.max(_FRESH).alias(_FRESH))
    # What is over has no part in the state, so it is one session of this epoch's rows.
    over, lives = merged.where(marks.passed(END)), merged.where(~marks.passed(END))
    late = connected.join(over.select(*of_sessions), [*keys, START], "left_semi").select(*map(quoted, rows.columns))
    new = _CHECKS.shaped(lives.where(_FRESH).drop(_FRESH), state, keys)
    gone = _CHECKS.shaped(near.join(lives.select(*of_sessions), [*keys, START], "left_anti"), state, keys)
    return Result(state.where(marks.due(END)), changes(new, gone), told_late(nulls.unionByName(late)))


def _check(rows: DataFrame, state: DataFrame, time: str, keys: Sequence[str]) -> None:
    _CHECKS.is_time("the rows", rows, time)
    _CHECKS.has_keys("the rows", rows, keys)
    _CHECKS.has_not("the rows", rows, [START, END, _FRESH, _FIRST, _NUMBER])
    _CHECKS.has_keys("the state", state, keys)
    _CHECKS.is_time("the state", state, START, END)


def _connected(parts: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The parts, each with the start and the end of all that is connected to it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_time = Window.partitionBy(*map(quoted, keys)).orderBy(START, END)
    end_before = F.max(END).over(by_time.rowsBetween(Window.unboundedPreceding, -1))
    first = F.when(end_before.isNull() | (F.col(START) > end_before), 1).otherwise(0)
    numbered = parts.withColumn(_FIRST, first).withColumn(_NUMBER, F.sum(_FIRST).over(by_time))
    whole = Window.partitionBy(*map(quoted, keys), _NUMBER)
    spans = {START: F.min(START).over(whole), END: F.max(END).over(whole)}
    return numbered.withColumns(spans).drop(_FIRST, _NUMBER)
