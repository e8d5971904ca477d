"""Event time: the watermarks of an epoch, durations, and arithmetic that knows no time zone.

Times are compared and added as microseconds since 1970. Spark's own intervals of days follow the calendar of the
session's time zone: a day would have 23 hours once a year. A sum that Spark has no number for is NULL, and does not
stop the epoch: a record may have any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Protocol

from airflow_epochs.transforms import closing
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_1970 = datetime(1970, 1, 1, tzinfo=timezone.utc)
_US = timedelta(microseconds=1)


class EpochWatermarks(Protocol):
    """The part of a transform's ``epoch`` that an operator needs. Both times have a zone; None: no watermark yet."""

    @property
    def watermark(self) -> datetime | None:
        """W: no row that is still to come should be of this time or before."""

    @property
    def previous_watermark(self) -> datetime | None:
        """P: W of the epoch before."""


@dataclass(frozen=True)
class WatermarkPair:
    """W and P, in microseconds since 1970."""

    now: int | None
    before: int | None

    @classmethod
    def of(cls, epoch: EpochWatermarks, *states: DataFrame) -> WatermarkPair:
        """The watermarks of an operator: the epoch's, but bounded by the operator's states (see ``closing``)."""
        marks = _since_1970(epoch.watermark), _since_1970(epoch.previous_watermark)
        return cls(*closing.settled(*marks, getattr(epoch, "place", 0), states))

    def passed(self, time: str | Column, lateness: int = 0) -> Column:
        """Whether ``time`` and the lateness after it are over by W."""
        return _at_most(time, self.now, lateness)

    def passed_before(self, time: str | Column) -> Column:
        """Whether ``time`` was over by P, so in the epoch before."""
        return _at_most(time, self.before)

    def due(self, time: str | Column) -> Column:
        """Whether ``time`` lies in (P, W]: it is over now, and was not an epoch ago."""
        return self.passed(time) & ~self.passed_before(time)


def _since_1970(time: datetime | None) -> int | None:
    return None if time is None else micros(time - _1970)


def _at_most(time: str | Column, bound: int | None, lateness: int = 0) -> Column:
    from pyspark.sql import functions as F

    if bound is None:
        return F.lit(False)
    # The column stands alone, so that Spark can look for it in the statistics of files.
    return (F.col(quoted(time)) if isinstance(time, str) else time) <= F.timestamp_micros(whole(bound - lateness))


def micros(duration: timedelta) -> int:
    """A duration in microseconds."""
    return duration // _US


_FIRST, _LAST = (micros(time.replace(tzinfo=timezone.utc) - _1970) for time in (datetime.min, datetime.max))
"""The years 1 to 9999: most readers know no others."""


def later(time: str, duration: int) -> Column:
    """The time ``duration`` microseconds later; NULL if no such time exists."""
    from pyspark.sql import functions as F

    return F.timestamp_micros(plus(F.unix_micros(quoted(time)), duration))


def plus(time: Column, duration: int) -> Column:
    """``later`` for a time that is given in microseconds."""
    from pyspark.sql import functions as F

    return F.try_add(time, whole(duration))


def _is_known(time: str | Column) -> Column:
    """Whether the time is in the years 1 to 9999."""
    from pyspark.sql import functions as F

    column = F.col(quoted(time)) if isinstance(time, str) else time
    inside = column.between(F.timestamp_micros(whole(_FIRST)), F.timestamp_micros(whole(_LAST)))
    return F.coalesce(inside, F.lit(False))


def whole(number: int) -> Column:
    """A number of 64 bits: a small one alone would have 32."""
    from pyspark.sql import functions as F

    return F.lit(number).cast("long")


def split(
    rows: DataFrame, needed: Sequence[str], late: Column, times: Sequence[str | Column] = ()
) -> tuple[DataFrame, DataFrame]:
    """The rows that count, and the others: those that are late, lack a needed column, or have a time too far away.

    ``times``: the time of a row, and those that the operator makes of it.
    """
    from pyspark.sql import functions as F

    counts = ~late
    for name in needed:
        counts = F.col(quoted(name)).isNotNull() & counts
    for time in times:
        counts = _is_known(time) & counts
    return rows.where(counts), rows.where(~counts)
