"""Dropping duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.transforms import exact_json
from airflow_epochs.transforms.changes import Result, changes, told_late
from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import quoted
from airflow_epochs.transforms.event_time import EpochWatermarks, WatermarkPair, later, plus, split

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXPIRES = "expires"
_CHECKS = Checks("dedupe")
_UNTIL, _TIMES, _ROW, _TEXTS = "__until", "__times", "__row", "__texts"


def dedupe(
    rows: DataFrame,
    state: DataFrame,
    epoch: EpochWatermarks,
    *,
    time: str,
    keys: Sequence[str],
    within: timedelta,
    order: Sequence[str] = (),
) -> Result:
    """Pass the first row of each key, and drop those that follow within a while of event time.

    A row passes if its key has not passed yet, or if it is at least ``within`` later than the row of its key that
    passed last. Rows of one epoch are taken by their time. So it does not matter where an epoch ends if the rows of a
    key come in the order of their times. If rows lie within less than ``within``, one of them passes in any case; if
    they come out of order, it depends on the ends of epochs which one.

    A row that has passed is not taken back, and the state knows only the last one. If a row is earlier than this one
    and comes in a later epoch, it does not pass: it is a duplicate if it is earlier by less than ``within``. If it is
    earlier by ``within`` or more, nobody knows whether another row like it has passed, so it is among the late rows.

    Made for keys that seldom come back: the times of one key in one epoch must fit into the memory of a Spark task.

    Args:
        rows: The epoch's rows.
        state: The keys that passed: keys and ``expires``. The table's keys are the keys; it expires by ``expires``.
        epoch: The transform's epoch.
        time: The column with the time of a row, a timestamp.
        keys: Columns of the rows.
        within: For how long other rows of a key are duplicates.
        order: Columns that decide between rows of a key with equal times, the least first; then all other columns do.

    Returns:
        ``out`` has the rows that passed, with their columns; ``late`` has also rows that may or may not be duplicates.
        Duplicates are nowhere.
    """
    marks, keys = WatermarkPair.of(epoch, state), _CHECKS.names("keys", keys)
    order, length = _CHECKS.names("order", order, some=False), _CHECKS.duration("within", within)
    _check(rows, state, time, keys, order)
    counting, late = split(rows, [time, *keys], marks.passed(time), [time, later(time, length)])
    alive = state.where(~marks.passed(EXPIRES))
    passed = _passed(alive, counting, keys)
    passing = _passing(_unknown(counting, passed, keys, time), keys, length)
    out = _one_each(counting, passing, keys, time, order)
    late = late.unionByName(_long_before(counting, passed, keys, time, length))
    return Result(out, changes(_CHECKS.shaped(_expiring(passing, keys, length), state, keys)), told_late(late))


def _check(rows: DataFrame, state: DataFrame, time: str, keys: Sequence[str], order: Sequence[str]) -> None:
    _CHECKS.is_time("the rows", rows, time)
    _CHECKS.has("the rows", rows, order)
    _CHECKS.has_keys("the rows", rows, keys)
    _CHECKS.has_not("the rows", rows, [_UNTIL, _TIMES, _ROW, _TEXTS])
    _CHECKS.has_keys("the state", state, keys)
    _CHECKS.is_time("the state", state, EXPIRES)
    for field in rows.schema.fields:
        kind = field.dataType.simpleString()
        if "map<" in kind or "variant" in kind:
            raise Refused(
                f"dedupe: column {field.name!r} of the rows is of type {kind}, which has no order: between "
                "equal times, chance would choose a row. Nothing was written.",
                code=codes.OPERATOR_COLUMNS,
                remedy=f"Make text of the column, by {exact_json.call(field.name, kind)}, or drop it. Then clear the "
                "failed task.",
            )


def _passed(alive: DataFrame, rows: DataFrame, keys: list[str]) -> DataFrame:
    """The keys of the rows that have passed, and until when their rows are duplicates, in microseconds."""
    from pyspark.sql import functions as F

    of_keys = [*map(quoted, keys)]
    known = alive.join(rows.select(*of_keys), keys, "left_semi")
    return known.select(*of_keys, F.unix_micros(EXPIRES).alias(_UNTIL))


def _unknown(rows: DataFrame, passed: DataFrame, keys: list[str], time: str) -> DataFrame:
    """Key and time, in microseconds, of the rows that the state does not make duplicates."""
    from pyspark.sql import functions as F

    times = rows.select(*map(quoted, keys), F.unix_micros(quoted(time)).alias(_TIMES)).join(passed, keys, "left")
    return times.where(F.col(_UNTIL).isNull() | (F.col(_TIMES) >= F.col(_UNTIL))).drop(_UNTIL)


def _long_before(rows: DataFrame, passed: DataFrame, keys: list[str], time: str, length: int) -> DataFrame:
    """The rows that are earlier, by the length or more, than the row of their key that passed last."""
    from pyspark.sql import functions as F

    length_before_last = plus(F.col(_UNTIL), -2 * length)
    long_before = rows.join(passed, keys).where(F.unix_micros(quoted(time)) <= length_before_last)
    return long_before.select(*map(quoted, rows.columns))


def _passing(times: DataFrame, keys: list[str], length: int) -> DataFrame:
    """For each key, the times at which a row passes."""
    from pyspark.sql import functions as F

    every = times.groupBy(*map(quoted, keys)).agg(F.sort_array(F.collect_set(_TIMES)).alias(_TIMES))
    return every.withColumn(_TIMES, _far_apart(F.col(_TIMES), length))


def _far_apart(times: Column, length: int) -> Column:
    """The first of sorted times, and each time that is at least the length later than the one taken before it."""
    from pyspark.sql import functions as F

    none = F.slice(times, 1, 0)

    def taken(so_far: Column, time: Column) -> Column:
        free = F.coalesce(time >= plus(F.try_element_at(so_far, F.lit(-1)), length), F.lit(True))
        return F.when(free, F.concat(so_far, F.array(time))).otherwise(so_far)

    return F.aggregate(times, none, taken)


def _one_each(rows: DataFrame, passing: DataFrame, keys: list[str], time: str, order: Sequence[str]) -> DataFrame:
    """The least row of each key and each of its times: one that no chance chooses."""
    from pyspark.sql import functions as F

    compared = [*map(quoted, dict.fromkeys([*keys, time, *order, *rows.columns])), _texts(rows)]
    at = passing.select(*map(quoted, keys), F.explode(F.transform(_TIMES, F.timestamp_micros)).alias(time))
    those = rows.join(at, [*keys, time], "left_semi").groupBy(*map(quoted, [*keys, time]))
    least = those.agg(F.min(F.struct(*compared)).alias(_ROW))
    return least.select(f"{_ROW}.*").select(*map(quoted, rows.columns))


def _texts(rows: DataFrame) -> Column:
    """Texts that differ for rows which Spark compares as equal, such as -0.0 and 0.0, or texts with a collation."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    alike = [name for name, kind in kinds.items() if any(word in kind for word in ("float", "double", "collate"))]
    return F.array(*(F.col(quoted(name)).cast("string") for name in alike)).alias(_TEXTS)


def _expiring(passing: DataFrame, keys: list[str], length: int) -> DataFrame:
    from pyspark.sql import functions as F

    until = F.timestamp_micros(plus(F.element_at(_TIMES, -1), length))
    return passing.select(*map(quoted, keys), until.alias(EXPIRES))
