"""Tumbling and hopping windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.transforms.changes import Result, changes, expires_by, told_late
from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import quoted
from airflow_epochs.transforms.event_time import EpochWatermarks, WatermarkPair, later, plus, split, whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

START, END, EXPIRES = "window_start", "window_end", "expires"
_FRESH, _NEWEST = "__fresh", "__newest_end"
_CHECKS = Checks("windowed")


def windowed(
    rows: DataFrame,
    state: DataFrame,
    epoch: EpochWatermarks,
    *,
    time: str,
    size: timedelta,
    keys: Sequence[str],
    agg: Sequence[Column],
    merge: Sequence[Column],
    slide: timedelta | None = None,
    lateness: timedelta = timedelta(0),
) -> Result:
    """Aggregate rows by keys and windows of event time. A window is final once W has reached its end.

    A window is ``[window_start, window_end)``; windows begin at whole multiples of the slide since 1970, in UTC. A row
    is late if all its windows are over; of a row's windows, only those that are not over count it.

    Args:
        rows: The epoch's rows.
        state: The open windows: keys, ``window_start``, ``window_end`` and the aggregates; with a lateness also
            ``expires``. The table's keys are the keys and ``window_start``; it expires by ``window_end``, with a
            lateness by ``expires``.
        epoch: The transform's epoch.
        time: The column with the time of a row, a timestamp.
        size: How long a window is. If it is changed, an open window keeps its rows, and ends at the later of both ends.
            If it is raised, a window that was shown stays as it was, and a larger one at its start begins without its
            rows.
        keys: Columns of the rows. Without any, there is one row per window.
        agg: Aggregates of rows, like ``F.count("*").alias("n")``.
        merge: Aggregates of these aggregates under the same names, like ``F.sum("n").alias("n")``. For an average,
            keep sum and count.
        slide: The time from the start of a window to the start of the next; by default the size.
        lateness: For how long a final window still counts rows. If it is raised later, windows that have expired do not
            come back: rows of these would begin them anew.

    Returns:
        ``out`` has the state's columns but ``expires``. Without a lateness it has each window once. With a lateness it
        has a window again whenever it changed: a sink upserts by the keys and ``window_start``.
    """
    hop = _Hop.of(size, slide, lateness)
    marks, names = WatermarkPair.of(epoch, state), [*_CHECKS.names("keys", keys, some=False), START]
    _check(rows, state, time, names, hop)
    counting, late = split(rows, [time, *keys], marks.passed(hop.newest_end(time), hop.lateness), hop.times(time))
    placed = hop.placed(counting, time).where(~marks.passed(END, hop.lateness))
    made = hop.expiring(placed.groupBy(*map(quoted, names), END).agg(*agg), state)
    old = _CHECKS.in_order_of(made, state)
    parts = _parts(old, _CHECKS.shaped(made, old, names), names, marks, hop.lateness)
    new = _CHECKS.shaped(parts.groupBy(*map(quoted, names)).agg(*merge, *_latest(state)), state, names)
    return Result(_shown(state, new, names, marks).drop(EXPIRES), changes(new), told_late(late))


@dataclass(frozen=True)
class _Hop:
    """How windows lie, in microseconds."""

    size: int
    slide: int
    lateness: int

    @classmethod
    def of(cls, size: timedelta, slide: timedelta | None, lateness: timedelta) -> _Hop:
        hop = cls(
            _CHECKS.duration("size", size),
            _CHECKS.duration("slide", size if slide is None else slide),
            _CHECKS.duration("lateness", lateness, zero=True),
        )
        if hop.slide > hop.size:  # rows between two windows would vanish
            raise _CHECKS.argument("slide", slide, f"a timedelta of at most the size, {size!r}")
        return hop

    def newest_start(self, time: str) -> Column:
        """The start of the newest window that has the row, in microseconds. A quotient would be rounded."""
        from pyspark.sql import functions as F

        at, slide = F.unix_micros(quoted(time)), whole(self.slide)
        return F.try_subtract(at, (at % slide + slide) % slide)

    def oldest_start(self, time: str) -> Column:
        """The start of the oldest window that may have the row, in microseconds."""
        return plus(self.newest_start(time), -((self.size - 1) // self.slide * self.slide))

    def newest_end(self, time: str) -> Column:
        """The end of the newest window that has the row."""
        from pyspark.sql import functions as F

        return F.timestamp_micros(plus(self.newest_start(time), self.size))

    def times(self, time: str) -> list[str | Column]:
        """A row's time, the start of its oldest window, and the expiry of its newest."""
        from pyspark.sql import functions as F

        ends = [self.oldest_start(time), plus(self.newest_start(time), self.size + self.lateness)]
        return [time, *map(F.timestamp_micros, ends)]

    def placed(self, rows: DataFrame, time: str) -> DataFrame:
        """A row for each window that has it."""
        from pyspark.sql import functions as F

        oldest, newest = self.oldest_start(time), self.newest_start(time)
        starts = F.sequence(oldest, newest, whole(self.slide)) if self.slide < self.size else F.array(newest)
        begun = rows.withColumn(START, F.explode(F.transform(starts, F.timestamp_micros)))
        return begun.withColumn(END, later(START, self.size)).where(F.col(END) > F.col(quoted(time)))

    def expiring(self, windows: DataFrame, state: DataFrame) -> DataFrame:
        """The windows with the time until which they count rows, if the state has a column for it."""
        return windows.withColumn(EXPIRES, later(END, self.lateness)) if EXPIRES in state.columns else windows


def _check(rows: DataFrame, state: DataFrame, time: str, names: Sequence[str], hop: _Hop) -> None:
    _CHECKS.is_time("the rows", rows, time)
    _CHECKS.has_keys("the rows", rows, names[:-1])
    _CHECKS.has_not("the rows", rows, [START, END, EXPIRES, _FRESH, _NEWEST])
    _CHECKS.has_keys("the state", state, names)
    _CHECKS.is_time("the state", state, START, END)
    if EXPIRES in state.columns:
        _CHECKS.is_time("the state", state, EXPIRES)
    if hop.lateness:
        _require_kept(state)


_BEGINNING_ANEW = (
    "If the table has rows, give the state another name and path: `open` then names the command with which it begins "
    "empty. Then clear the failed task."
)


def _require_kept(state: DataFrame) -> None:
    """Refuse a state that does not keep windows for as long as they are corrected."""
    if EXPIRES not in state.columns:
        raise Refused(
            "windowed: with a lateness the state needs a column 'expires', which it lacks: it says until when a window "
            "is corrected after its end. Nothing was written.",
            code=codes.OPERATOR_COLUMNS,
            remedy="Add 'expires timestamp' to the schema of the state table, and set its expires='expires'. "
            f"{_BEGINNING_ANEW}",
        )
    if (by := expires_by(state)) not in (None, EXPIRES):
        raise Refused(
            f"windowed: with a lateness the state table must expire by 'expires', and it expires by {by!r}: so it "
            "drops windows that are still corrected. Nothing was written.",
            code=codes.OPERATOR_COLUMNS,
            remedy=f"Set expires='expires' of the state table. {_BEGINNING_ANEW}",
        )


def _parts(state: DataFrame, fresh: DataFrame, names: Sequence[str], marks: WatermarkPair, lateness: int) -> DataFrame:
    """The parts of the changed windows: their rows in the state, and the aggregates of this epoch's rows."""
    old = state.where(_still_counts(state, marks, lateness))
    old = old.join(fresh.select(*map(quoted, names)), list(names), "left_semi")
    if EXPIRES not in state.columns:
        return old.unionByName(fresh)
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy(*map(quoted, names))
    latest = {_NEWEST: F.max(END).over(window), EXPIRES: F.max(EXPIRES).over(window)}
    told_apart = old.withColumn(_FRESH, F.lit(False)).unionByName(fresh.withColumn(_FRESH, F.lit(True)))
    parts = told_apart.withColumns(latest)
    # Only after a change of the size: the smaller window was shown, so its rows must not count in the larger one.
    was_shown = ~F.col(_FRESH) & marks.passed_before(END) & (F.col(END) < F.col(_NEWEST))
    return parts.where(~was_shown).drop(_FRESH, _NEWEST)


def _still_counts(state: DataFrame, marks: WatermarkPair, lateness: int) -> Column:
    """Whether a window of the state still counts rows.

    Its own ``expires`` decides, since lateness and size may have changed; it is NULL in windows older than the column.
    """
    from pyspark.sql import functions as F

    if EXPIRES not in state.columns:
        return ~marks.passed(END)
    return F.when(F.col(EXPIRES).isNull(), ~marks.passed(END, lateness)).otherwise(~marks.passed(EXPIRES))


def _latest(state: DataFrame) -> list[Column]:
    """The later end and the later expiry of a window's parts, as columns.

    They differ after a change of the size or of the lateness. A window must not end before the epoch that has shown it
    open, and it keeps its earlier rows.
    """
    from pyspark.sql import functions as F

    return [F.max(time).alias(time) for time in (END, EXPIRES) if time in state.columns]


def _shown(state: DataFrame, new: DataFrame, names: Sequence[str], marks: WatermarkPair) -> DataFrame:
    """The windows that end now and, with a lateness, final ones that changed."""
    ending = state.where(marks.due(END))
    if EXPIRES not in state.columns:
        return ending
    return ending.join(new.select(*map(quoted, names)), list(names), "left_anti").unionByName(
        new.where(marks.passed(END))
    )
