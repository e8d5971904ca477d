"""Any state by key, in a function of pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.transforms import returned
from airflow_epochs.transforms.changes import DELETED, Result, told_late
from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import quoted
from airflow_epochs.transforms.event_time import EpochWatermarks, WatermarkPair, split

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

TIMER = "timer"
_CHECKS = Checks("stateful")
_OUT, _STATE = "out", "state"
_UTC = {"UTC", "ETC/UTC", "GMT", "ETC/GMT", "Z", "+00:00"}
_DECIMAL = "decimal(19,0)"
_ZONE = "spark.sql.session.timeZone"

Func = Callable[
    [tuple[Any, ...], "pd.DataFrame", "pd.DataFrame", "pd.Timestamp | None"],
    "tuple[pd.DataFrame | None, pd.DataFrame | None]",
]


def stateful(
    rows: DataFrame,
    state: DataFrame,
    epoch: EpochWatermarks,
    *,
    keys: Sequence[str],
    func: Func,
    out: str | StructType,
    time: str | None = None,
    order: Sequence[str] = (),
) -> Result:
    """Call a function of yours for each key that has rows in this epoch, or a timer that is due.

    ``func(key, rows, state, watermark)`` gets a tuple, two pandas DataFrames and a time. ``state`` has one row, or no
    row for a new key. It returns the rows to show and the new state: a DataFrame of one row, or None to delete it.

    The function must be deterministic: Spark calls it again for every sink that gets a part of the result, and whenever
    a task is repeated. It costs one call of Python per key, and the rows of a key in one epoch must fit into the memory
    of a Python worker. It travels by value, and the workers need pandas and pyarrow, but not this package. Times are
    without a zone, in UTC; so the session's time zone must be UTC. A bigint column is int64, or Int64 if it has a NULL.
    A NaN that the function returns is NULL, also inside of an array: pandas does not tell them apart. As a key, NaN is
    NaN, and -0.0 is 0.0. What the function returns must have numbers that fit the declared types: no float for a
    decimal, and no 3.7 for an int. A column or field that is not declared, in place of one that is, is an error.

    Args:
        rows: The epoch's rows.
        state: One row per key: keys and whatever the function keeps. The table's keys are the keys. With a timestamp
            named ``timer``, a key is called without rows once W has reached it, and in every epoch until the function
            moves it, sets it to None, or deletes the state. If the table expires by another column, it hides expired
            keys: the function sees no state for them.
        epoch: The transform's epoch.
        keys: Columns of the rows. The function gets them in the state's types.
        func: The function. It need not repeat the keys in the state that it returns.
        out: The columns of the rows to show, like ``"page string, n long"``.
        time: The column with the time of a row, a timestamp. Rows up to W are then late; without it, no row is.
        order: Columns by which the rows of a key are sorted after their time: give some that tell all rows apart.

    Returns:
        ``out`` has the function's rows.
    """
    from pyspark.sql import functions as F

    keys, order = _CHECKS.names("keys", keys), _CHECKS.names("order", order, some=False)
    times, marks = [time] if time else [], WatermarkPair.of(epoch, state)
    _check(rows, state, keys, times, order)
    counting, late = split(rows, [*times, *keys], marks.passed(time) if time else F.lit(False), times)
    counting = _CHECKS.keyed(counting, state, keys)
    due = state.where(marks.passed(TIMER) if TIMER in state.columns else F.lit(False))
    named = [*map(quoted, keys)]
    called = state.join(counting.select(*named).unionByName(due.select(*named)), keys, "left_semi")
    shown = rows.sparkSession.createDataFrame([], out).schema
    call = _caller(func, tuple(keys), _checks(shown), _checks(state.schema), (*times, *order), marks.now)
    in_rows, in_state = _bigints(counting, keys), _bigints(called, keys)
    given = ((_with_one_zero(counting, keys), in_rows), (_with_one_zero(called, keys), in_state))
    left, right = (_as_decimals(*each).groupBy(*named) for each in given)
    both = left.cogroup(right).applyInPandas(_of_decimals(call, in_rows, in_state), _both(shown, state.schema))
    changed = both.where(F.col(_STATE).isNotNull()).select(f"{_STATE}.*", DELETED)
    made = both.where(F.col(_OUT).isNotNull()).select(f"{_OUT}.*")
    return Result(made, _with_nan(changed, state.schema, keys), told_late(late))


def _check(rows: DataFrame, state: DataFrame, keys: list[str], times: Iterable[str], order: Iterable[str]) -> None:
    _CHECKS.has("the rows", rows, order)
    _CHECKS.has_keys("the rows", rows, keys)
    _CHECKS.is_time("the rows", rows, *times)
    _CHECKS.has_keys("the state", state, keys)
    if TIMER in state.columns:
        _CHECKS.is_time("the state", state, TIMER)
    if (zone := rows.sparkSession.conf.get(_ZONE) or "").upper() not in _UTC:
        raise Refused(
            f"stateful: the session's time zone is {zone}, not UTC. pandas would get local times, of which one hour "
            "occurs twice when clocks are set back. Nothing was written.",
            code=codes.OPERATOR_ARGUMENT,
            remedy=f"Set {_ZONE} to UTC: in session_conf of SparkConnect, in conf of SparkSubmit, or on the server. "
            "Then clear the failed task.",
        )


def _bigints(frame: DataFrame, keys: list[str]) -> list[str]:
    """The columns that travel as decimals. Spark makes floats of bigints with a NULL: exact only up to 2^53.

    A key is never NULL, and the function gets it beside the rows, too.
    """
    from pyspark.sql.types import LongType

    return [each.name for each in frame.schema if isinstance(each.dataType, LongType) and each.name not in keys]


def _as_decimals(frame: DataFrame, bigints: list[str]) -> DataFrame:
    from pyspark.sql import functions as F

    decimals = {name: F.col(quoted(name)).cast(_DECIMAL) for name in bigints}
    return frame.withColumns(decimals) if decimals else frame  # Spark Connect takes no empty dict


def _with_one_zero(frame: DataFrame, keys: list[str]) -> DataFrame:
    """The frame with 0.0 for -0.0 in its keys. They are equal, and Spark would not put them side by side."""
    from pyspark.sql import functions as F

    return _with_floats(frame, frame.schema, keys, lambda key: F.when(key == 0, 0).otherwise(key))


def _with_nan(changed: DataFrame, state: StructType, keys: list[str]) -> DataFrame:
    """The changes with NaN for NULL in their keys. No key was NULL, but pandas makes NULL of NaN."""
    from pyspark.sql import functions as F

    return _with_floats(changed, state, keys, lambda key: F.coalesce(key, F.lit("NaN").cast("double")))


def _with_floats(frame: DataFrame, schema: StructType, names: list[str], make: Callable[[Column], Column]) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType

    kinds = {name: schema[name].dataType for name in names}
    floats = {
        name: make(F.col(quoted(name))).cast(kind)
        for name, kind in kinds.items()
        if isinstance(kind, (DoubleType, FloatType))
    }
    return frame.withColumns(floats) if floats else frame


def _both(shown: StructType, state: StructType) -> StructType:
    """The rows to show and the rows of the state in one table: the function is called once for both."""
    from pyspark.sql.types import StructType

    return StructType().add(_OUT, shown).add(_STATE, state).add(DELETED, "boolean")


def _checks(schema: StructType) -> returned.ColumnChecks:
    """The columns, each with the check of its values."""
    return {field.name: returned.check_of(field.dataType.jsonValue()) for field in schema}


def _of_decimals(
    call: Callable[..., pd.DataFrame], in_rows: list[str], in_state: list[str]
) -> Callable[..., pd.DataFrame]:
    """``call``, for rows and a state whose bigints are decimals. A nested function, as in ``_caller``."""

    def exact(key: tuple[Any, ...], rows: pd.DataFrame, state: pd.DataFrame) -> pd.DataFrame:
        return call(key, with_bigints(rows, in_rows), with_bigints(state, in_state))

    def with_bigints(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
        for name in names:
            frame[name] = bigints(frame[name])
        return frame

    def bigints(decimals: pd.Series) -> Any:
        import pandas as pd

        found = pd.array([None if each is None else int(each) for each in decimals], dtype="Int64")
        return found if found.isna().any() else found.astype("int64")

    return exact


def _caller(
    func: Func,
    keys: tuple[str, ...],
    shown_checks: returned.ColumnChecks,
    state_checks: returned.ColumnChecks,
    order: tuple[str, ...],
    watermark: int | None,
) -> Callable[..., pd.DataFrame]:
    """The function that Spark's Python workers run.

    It and all that it calls are nested, and use nothing of this module: so they are pickled by value, and so is
    ``returned``. A worker of Spark Connect does not have this package, and could not import it.
    """
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(returned)
    columns_of_both, records = [_OUT, _STATE, DELETED], returned.records
    shown_records, kept_records = returned.shown_records, returned.kept_records

    def call(key: tuple[Any, ...], rows: pd.DataFrame, state: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        mark = None if watermark is None else pd.Timestamp(watermark, unit="us")
        given = rows.sort_values(list(order), kind="stable", ignore_index=True) if order else rows
        known = deepcopy(records(state))  # now, since the function may change the frames that it gets
        shown, kept = func(key, given, state, mark)
        told: list[tuple[object, ...]] = [(record, None, None) for record in shown_records(key, shown, shown_checks)]
        told += [(None, record, False) for record in kept_records(key, kept, keys, state_checks)]
        if kept is None or kept.empty:
            told += [(None, record, True) for record in known]
        return pd.DataFrame(told, columns=columns_of_both, dtype=object)

    return call
