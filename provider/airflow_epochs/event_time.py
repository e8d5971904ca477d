"""Event time: what the DAG says of it, and how an epoch's watermark follows from the epochs before.

A watermark W is a promise about event time: rows up to W, inclusive, have come, and a row that comes later is *late*.
It is computed when an epoch is opened, from completion records alone, and stands in the open record. So every attempt
of the epoch has the same. See Akidau et al., "The Dataflow Model", VLDB 2015.

Instants are whole microseconds since 1970 (UTC), as Spark's TIMESTAMP has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import BadArgument
from airflow_epochs.model import EventTimes, JsonDict, PartitionTime, Watermarks

if TYPE_CHECKING:
    from airflow_epochs.model import CompleteRecord, Ranges

_UNITS = {
    "microsecond": timedelta(microseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "ms": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "sec": timedelta(seconds=1),
    "s": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "m": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "h": timedelta(hours=1),
    "day": timedelta(days=1),
    "d": timedelta(days=1),
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_MICROSECOND = timedelta(microseconds=1)
_START = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class EventTime:
    """How a pipeline's watermark follows its rows. The transform says which column is the event time.

    Durations are ``timedelta`` or text such as ``"10 min"``, ``"1 h"``, ``"90 s"`` or ``"2 days"``.

    Args:
        delay: How much later than the newest row of its partition a row may come without being late.
        idle_after: A partition without rows for this long does not hold the watermark back. The times compared are
            those at which epochs were opened. If no partition has had rows for this long, as after a pause of the DAG,
            the time of the last rows takes the place of the time now. None: a partition that has had rows always holds
            it back.
        max_ahead: A row further ahead of the epoch's ``now`` than this does not move the watermark. The log of
            ``stage`` counts such rows.
        tick: Whether a run without new data takes an empty epoch if the watermark moves: so the last windows close.
        depth: How many stateful operators stand one behind another; see ``EpochContext.chained``.

    Raises:
        BadArgument: A value is not valid.
    """

    def __init__(
        self,
        delay: timedelta | str,
        *,
        idle_after: timedelta | str | None = None,
        max_ahead: timedelta | str = "1 h",
        tick: bool = True,
        depth: int = 1,
    ) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= DEPTH_MAX:
            raise _bad(f"`depth` is {depth!r}. It must be a whole number from 1 to {DEPTH_MAX}.")
        self.delay = _duration("delay", delay)
        self.idle_after = None if idle_after is None else _duration("idle_after", idle_after)
        self.max_ahead = _duration("max_ahead", max_ahead)
        self.tick = tick
        self.depth = depth

    def __repr__(self) -> str:
        return f"EventTime({self.delay})"

    def newest_allowed(self, now: str) -> int:
        """The newest instant that may move the watermark, in an epoch that was first opened at ``now``."""
        return min(micros(datetime.fromisoformat(now)) + self.max_ahead // _MICROSECOND, _LAST)


DEPTH_MAX = 16
_LAST = 253_402_300_799_999_999
"""The end of 9999 in UTC: the last time that a transform can get as a datetime."""
_YEAR_1 = -62_135_596_800_000_000
"""0001-01-01 in UTC: the first time that can be a datetime. Some clients write it for a time that is not set."""


def next_watermarks(event_time: EventTime | None, before: CompleteRecord | None, now: str) -> Watermarks:
    """The watermarks of a new epoch: its own, then those of the epochs before, newest first. A watermark never falls.

    Its own is the least of the newest event times of all partitions that are not idle, less the delay, less 1 µs: a row
    that is exactly ``delay`` older than the newest one is not late.

    Args:
        event_time: What the DAG says; with None, the watermark stands still.
        before: The completion record of the epoch before.
        now: When this epoch is opened.

    Returns:
        ``depth + 1`` instants; None where no row with an event time had been seen by then. Empty if the
        pipeline never had an event time.
    """
    earlier = before.watermarks if before else ()
    length = event_time.depth + 1 if event_time else len(earlier)
    # The epoch before has dropped state by the last but one, so a depth that was raised must not bring back an older
    # one. It gives the deepest operator nothing to close.
    oldest = earlier[-2:][0] if earlier else None  # the only one, after a rebuild
    marks = [_own(event_time, before, now), *earlier[:-1], *[oldest] * length]
    return tuple(marks[:length])


def _own(event_time: EventTime | None, before: CompleteRecord | None, now: str) -> int | None:
    last = before.watermarks[0] if before and before.watermarks else None
    if event_time is None or before is None:
        return last
    times = _times(before.event_times)
    if not times:
        return last
    latest = max((at.seen for at in times), key=datetime.fromisoformat)
    live = _live(event_time, times, now) or _live(event_time, times, latest)
    reached = min(at.newest for at in live) - event_time.delay // _MICROSECOND - 1
    if reached < _YEAR_1:
        return last
    return reached if last is None else max(reached, last)


def times_after(
    before: CompleteRecord | None, seen: Mapping[str, Mapping[str, int]], ranges: Ranges, now: str
) -> EventTimes:
    """Topic -> partition -> its newest event time, after an epoch that has ``seen`` these.

    Partitions that the epoch did not read any more are left out: they must not hold the watermark back.
    """
    earlier = before.event_times if before else {}
    found: EventTimes = {}
    for topic, per_topic in ranges.items():
        for partition in (str(r.partition) for r in per_topic):
            old, new = earlier.get(topic, {}).get(partition), seen.get(topic, {}).get(partition)
            if new is not None:
                newest = new if old is None else max(new, old.newest)
                found.setdefault(topic, {})[partition] = PartitionTime(newest=newest, seen=now)
            elif old is not None:
                found.setdefault(topic, {})[partition] = old
    return found


def packed(watermarks: Watermarks, event_times: EventTimes) -> JsonDict:
    """What the next epoch must know of the watermark, for the note on a sink's commit. Each ``seen`` stands once."""
    times = [at for per_topic in event_times.values() for at in per_topic.values()]
    seen = sorted({at.seen for at in times})
    number = {each: index for index, each in enumerate(seen)}
    newest = {
        topic: {partition: [at.newest, number[at.seen]] for partition, at in per_topic.items()}
        for topic, per_topic in event_times.items()
    }
    return {"watermarks": list(watermarks), "seen": seen, "newest": newest}


def unpacked(told: JsonDict) -> tuple[Watermarks, EventTimes]:
    """The inverse of ``packed``."""
    times = {
        topic: {partition: PartitionTime(newest=at, seen=told["seen"][index]) for partition, (at, index) in of.items()}
        for topic, of in told["newest"].items()
    }
    return tuple(told["watermarks"]), times


def micros(at: datetime) -> int:
    """Microseconds from 1970 to an instant with its zone."""
    return (at - _START) // _MICROSECOND


def instant_text(at: int) -> str:
    """An instant in microseconds as text; the number itself if it is outside the calendar of Python."""
    try:
        return (_START + at * _MICROSECOND).isoformat()
    except OverflowError:
        return f"{at} us"


def _times(event_times: EventTimes) -> list[PartitionTime]:
    return [at for per_topic in event_times.values() for at in per_topic.values()]


def _live(event_time: EventTime, times: list[PartitionTime], now: str) -> list[PartitionTime]:
    """The partitions that are not idle."""
    most = event_time.idle_after
    if most is None:
        return times
    return [at for at in times if datetime.fromisoformat(now) - datetime.fromisoformat(at.seen) <= most]


def _duration(name: str, value: timedelta | str) -> timedelta:
    found = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(found, timedelta) or found < timedelta(0):
        raise _bad(f"`{name}` is {value!r}. It must be a timedelta or a text like '10 min', '1 h' or '2 days'.")
    return found


def parse_duration(text: str) -> timedelta | None:
    """A text such as ``"10 min"``, ``"10m"``, ``"1 h"`` or ``"2 days"``; None if it is no duration."""
    found = _DURATION.fullmatch(text)
    name = found[2].lower() if found else ""
    unit = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    try:
        return float(found[1]) * unit if found and unit else None
    except OverflowError:  # longer than a timedelta can be
        return None


def _bad(what: str) -> BadArgument:
    return BadArgument(f"EventTime: {what}", code=codes.EVENT_TIME_ARGUMENT)
