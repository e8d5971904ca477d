"""Joining two streams whose rows lie close to each other in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_epochs.transforms.changes import JoinResult, changes, told_late
from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import quoted
from airflow_epochs.transforms.event_time import EpochWatermarks, WatermarkPair, later, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXPIRES = "expires"
_CHECKS = Checks("interval_join")


def interval_join(
    left: DataFrame,
    right: DataFrame,
    left_state: DataFrame,
    right_state: DataFrame,
    epoch: EpochWatermarks,
    *,
    on: Sequence[str],
    left_time: str,
    right_time: str,
    within: timedelta | tuple[timedelta, timedelta],
) -> JoinResult:
    """Pair the rows of two streams that have equal keys and lie close to each other in time: an inner join.

    A pair is made in the epoch in which its second row comes, exactly once. All pairs are made whose two rows were not
    late when they came: a row is kept until W has passed every time at which a partner could still come in time. A
    late row pairs with nothing, even if its partner is still in the state.

    Args:
        left: The epoch's rows of one stream.
        right: The epoch's rows of the other. Besides the columns in ``on``, no column may have a name of ``left``'s.
        left_state: The rows of ``left`` that may yet find a partner: its columns and ``expires``. The table expires by
            ``expires``. Its keys must tell all rows apart, as the records' topic, partition and offset do: a second row
            of a key takes the place of the first.
        right_state: The same for ``right``.
        epoch: The transform's epoch.
        on: Columns of both that must be equal.
        left_time: The column with the time of a row of ``left``, a timestamp.
        right_time: The same for ``right``.
        within: How much later the right row may be, the bound included: ``left_time <= right_time <= left_time +
            within``. With a pair (before, after): ``left_time - before <= right_time <= left_time + after``. If it is
            raised later, rows that have expired by the old bound do not come back, and find no partner any more.

    Returns:
        ``out`` has the columns of ``left``, and the columns of ``right`` but ``on``.
    """
    keys, (before, after) = _CHECKS.names("on", on), _bounds(within)
    marks = WatermarkPair.of(epoch, left_state, right_state)
    apart = _Apart(tuple(keys), left_time, right_time, before, after)
    _check(left, right, apart)
    right = _CHECKS.in_order_of(left, right)  # of the columns of `on`: no other is in both
    lefts = _Side("left", left, left_state, marks, keys, left_time, after)
    rights = _Side("right", right, right_state, marks, keys, right_time, before)
    pairs = apart.pairs(lefts.counting.unionByName(lefts.waiting), rights.counting)
    out = pairs.unionByName(apart.pairs(lefts.counting, rights.waiting))
    return JoinResult(out, lefts.changes, rights.changes, told_late(lefts.late), told_late(rights.late))


def _bounds(within: timedelta | tuple[timedelta, timedelta]) -> tuple[int, int]:
    both = within if isinstance(within, tuple) else (timedelta(0), within)
    if len(both) != 2:
        raise _CHECKS.argument("within", within, "a timedelta, or two: (before, after)")
    before, after = (_CHECKS.duration("within", one, zero=True) for one in both)
    return before, after


def _check(left: DataFrame, right: DataFrame, apart: _Apart) -> None:
    _CHECKS.is_time("left", left, apart.left_time)
    _CHECKS.is_time("right", right, apart.right_time)
    _CHECKS.has_keys("left", left, apart.on)
    _CHECKS.has_keys("right", right, apart.on)
    _CHECKS.has_not("left", left, [EXPIRES])
    _CHECKS.has_not("right", right.drop(*apart.on), [EXPIRES])
    _CHECKS.has_not("right", right.drop(*apart.on), left.columns, "left has one of this name")


class _Side:
    """One of the two streams: this epoch's rows and those that wait.

    Attributes:
        counting: The epoch's rows, but the late ones.
        late: The epoch's late rows.
        changes: The rows that count, as the state keeps them.
        waiting: The rows of the state.
    """

    def __init__(
        self,
        name: str,
        rows: DataFrame,
        state: DataFrame,
        marks: WatermarkPair,
        keys: Sequence[str],
        time: str,
        keep: int,
    ) -> None:
        _CHECKS.has_keys(f"the {name} state", state, keys)
        _CHECKS.is_time(f"the {name} state", state, EXPIRES)
        self.counting, self.late = split(rows, [time, *keys], marks.passed(time), [time, later(time, keep)])
        kept = self.counting.withColumn(EXPIRES, later(time, keep))
        self.changes = changes(_CHECKS.shaped(kept, state, keys))
        self.waiting = _CHECKS.in_order_of(rows, state).where(~marks.passed(EXPIRES)).drop(EXPIRES)


@dataclass(frozen=True)
class _Apart:
    """Which rows are partners; the bounds are in microseconds."""

    on: tuple[str, ...]
    left_time: str
    right_time: str
    before: int
    after: int

    def pairs(self, left: DataFrame, right: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        # An older state may have times that are too far apart for a number.
        distance = F.try_subtract(F.unix_micros(quoted(self.right_time)), F.unix_micros(quoted(self.left_time)))
        return left.join(right, list(self.on)).where(distance.between(-self.before, self.after))
