"""Plans an epoch that has the records of its run's data interval. No I/O, no clock.

In each partition, the epoch ends before the first record with a timestamp at or after the interval's end. It begins
where the last epoch ended, so ranges have no gaps: a record that came too late for its interval is in the next epoch.
What earlier epochs have read is on record as ``Coverage``, so a run knows whether its interval was read already.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import NamedTuple

from airflow_epochs import codes
from airflow_epochs.contracts import Interval
from airflow_epochs.errors import NoNewData, Refused
from airflow_epochs.model import Command, CompleteRecord, JsonDict, Ranges
from airflow_epochs.sources.kafka.logs import ClusterLog, Partition
from airflow_epochs.sources.kafka.plan import TimeIndex
from airflow_epochs.sources.kafka.starting import ms_of

KEY = "interval"
"""The field of ``source_state`` for the epoch's interval, and for the time since when no interval is left out."""
BEGAN = "interval_began"
"""The field of ``source_state`` in place of ``KEY`` after a command that moved the input back to offsets: the time
since when no interval had been left out. Until the next epoch, no time is known up to which records are read."""
LOOKED_AT_MAX = 1_000
"""How many of the newest epochs are searched for those that have read an interval."""


@dataclass(frozen=True)
class Coverage:
    """The records with timestamps in [since, end) that were there in time were read, by intervals without gaps.

    ``went_back``: a command went back to ``end``, and no epoch has read on from there yet.
    """

    since: datetime
    end: datetime
    went_back: bool = False


def coverage_of(state: Mapping[str, JsonDict]) -> Coverage | None:
    """The times whose records had been read after the epoch with this state; None if no times are known."""
    found = state.get(KEY)
    if not found:
        return None
    return Coverage(_time(found["since"]), _time(found["end"]), went_back=found["start"] == found["end"])


def began_of(state: Mapping[str, JsonDict]) -> datetime | None:
    """The time since when no interval has been left out, by ``KEY`` or ``BEGAN``; None if no time is known."""
    covered, text = coverage_of(state), state.get(BEGAN)
    return covered.since if covered else _time(str(text)) if text else None


def recorded(interval: Interval, coverage: Coverage | None, began: datetime | None = None) -> JsonDict:
    """The epoch's interval, and what is covered after it, for ``source_state``.

    ``coverage``: what was covered before the epoch. ``began``: ``began_of`` the state before, if only that is known.
    """
    since = coverage.since if coverage else min(began or interval.start, interval.start)
    return {"start": _text(interval.start), "end": _text(interval.end), "since": _text(since)}


def back_at(state: JsonDict, time: datetime | None) -> JsonDict:
    """``state`` after a command that moved the input back: what is to be read once more is no longer covered.

    ``time``: where the input goes on; None: only offsets tell it. Older intervals stay covered.
    """
    covered, began = coverage_of(state), began_of(state)
    left = without_coverage(state)
    if began is None:
        return left
    since = min(began, time or began)
    if covered is None or time is None:
        return {**left, BEGAN: _text(since)}
    end = _text(min(covered.end, time))
    return {**left, KEY: {"start": end, "end": end, "since": _text(since)}}


def without_coverage(state: JsonDict) -> JsonDict:
    """``state`` without the intervals that were read."""
    return {key: value for key, value in state.items() if key not in (KEY, BEGAN)}


def planned_for(state: Mapping[str, JsonDict]) -> Interval | None:
    """The interval of an epoch with this state; None if it is for none, or only says where a command went back to."""
    found = state.get(KEY)
    at = Interval(_time(found["start"]), _time(found["end"])) if found else None
    return at if at and at.start < at.end else None


def require_interval(interval: Interval | None) -> Interval:
    """The interval itself. Raises Refused if the run has no data interval, or one without duration."""
    if interval is None:
        raise Refused("The run has no data interval.", code=codes.INTERVAL_MISSING)
    if interval.start >= interval.end:
        raise Refused(
            f"The run's data interval {interval} has no duration.",
            code=codes.INTERVAL_MISSING,
        )
    return interval


def require_unread(interval: Interval, coverage: Coverage | None, past: Iterable[CompleteRecord]) -> None:
    """Raise unless the interval ends behind what was read.

    Raises:
        NoNewData: Epochs have read the interval.
        Refused: The pipeline began later.
    """
    if coverage is None or interval.end > coverage.end:
        return
    if interval.start < coverage.since:
        read = "" if coverage.since == coverage.end else f", and has read up to {_text(coverage.end)}"
        raise before_the_beginning(interval, f"began at {_text(coverage.since)}{read}")
    raise read_already(interval, past)


def read_already(interval: Interval, past: Iterable[CompleteRecord]) -> NoNewData:
    """The error for an interval that epochs have read already. Names the one that has."""
    return NoNewData(
        f"The records of {interval} were read already, by {_reader_of(interval, past)}.", code=codes.INTERVAL_COVERED
    )


def before_the_beginning(interval: Interval, where: str) -> Refused:
    """The error for an interval before the pipeline's position that no epoch is known to have read."""
    return Refused(
        f"The pipeline {where}. The run's data interval {interval} lies before that position.",
        code=codes.INTERVAL_BEFORE,
        remedy=f"Type `airflow epochs rewind PIPELINE --to-timestamp {_text(interval.start)} --why …` to read from "
        "there on once more. It says which rows appear twice. Then clear the failed task. Otherwise delete the run.",
    )


def _reader_of(interval: Interval, past: Iterable[CompleteRecord]) -> str:
    """The epoch that read the interval; if commands moved the input back, the newest one."""
    found: CompleteRecord | None = None
    for record in islice(past, LOOKED_AT_MAX):
        covered = coverage_of(record.source_state)
        if covered is None or covered.end < interval.end:
            break
        if found and _is_first_in_row(found) and covered.since > interval.start:
            break
        found = record
        if any(_begins_by(interval, each) for each in record.commands):
            break
    return f"epoch {found.txn_id.epoch} of {found.opened_by}" if found else "an earlier epoch"


def _begins_by(interval: Interval, command: Command) -> bool:
    """Whether epochs since the command have read the interval, or it moved the pipeline to other topics."""
    return bool(command.left) or (command.back_to != "" and _time(command.back_to) <= interval.start)


def _is_first_in_row(record: CompleteRecord) -> bool:
    """Whether the epoch does not begin where the one before has ended."""
    return record.txn_id.epoch in (1, record.moved_in)


def was_read(interval: Interval, past: Iterable[CompleteRecord]) -> bool:
    """Whether times on record say that an epoch, or those before it, had read the interval: in the topics of today.

    Earlier versions forgot this when a command moved the input back.
    """
    for record in islice(past, LOOKED_AT_MAX):
        covered = coverage_of(record.source_state)
        if covered and covered.since <= interval.start and interval.end <= covered.end:
            return True
        if any(each.left for each in record.commands):
            return False
    return False


class ConsecutiveEpochs(NamedTuple):
    """Epochs without a gap: each begins where the one before ended. ``is_newest``: the next epoch follows them."""

    first: CompleteRecord
    last: CompleteRecord
    is_newest: bool


def rows(past: Iterable[CompleteRecord]) -> Iterator[ConsecutiveEpochs]:
    """The ``ConsecutiveEpochs`` among the newest epochs, newest first, that have read the topics of today."""
    last, is_newest = None, True
    for record in islice(past, LOOKED_AT_MAX):
        last = last or record
        if _is_first_in_row(record):
            yield ConsecutiveEpochs(record, last, is_newest)
            last, is_newest = None, False
        if any(each.left for each in record.commands):
            return


def plan(
    interval: Interval,
    coverage: Coverage | None,
    available: Ranges,
    starts: TimeIndex,
    ends: TimeIndex,
    *,
    refuse_missed: bool = False,
) -> tuple[Ranges, str]:
    """The ranges of the epoch, and what they are: a text without its full stop.

    Args:
        interval: It has passed ``require_unread``.
        coverage: What was read before.
        available: The ranges of all records that can be read now.
        starts: Per partition, the first record in the interval or after it.
        ends: Per partition, the first record after the interval. Read later than ``available``: a partition without
            such a record has no record that is too new.
        refuse_missed: Whether the intervals before must have been read.

    Raises Refused: The pipeline goes on behind the interval; or intervals were left out, and must not be.
    """
    ranges = cut(available, ends)
    earlier = before_interval(ranges, starts)
    if coverage is None and is_behind(ranges, starts):
        raise before_the_beginning(interval, "goes on behind its records")
    if refuse_missed and is_missed(interval, coverage, earlier):
        raise _missed(interval, coverage, earlier)
    return ranges, told(interval, coverage, earlier)


def cut(ranges: Ranges, ends: TimeIndex) -> Ranges:
    """End each range at its offset in ``ends``. Without such an offset no record is too new, and the range stays.

    ``ends`` may be newer than the logs, so such an offset may lie behind the range's end: it can be read all the same.
    """
    return {
        topic: tuple(r._replace(end=max(r.start, _at(ends, (topic, r.partition), r.end))) for r in of)
        for topic, of in ranges.items()
    }


def cut_ends(full: Ranges, ranges: Ranges) -> dict[Partition, int]:
    """The ends of the ranges that ``cut`` has made shorter than in ``full``."""
    pairs = ((topic, r, whole) for topic, of in ranges.items() for r, whole in zip(of, full[topic], strict=True))
    return {(topic, r.partition): r.end for topic, r, whole in pairs if r.end < whole.end}


def _at(index: TimeIndex, partition: Partition, otherwise: int) -> int:
    found = index.get(partition)
    return otherwise if found is None else found


def before_interval(ranges: Ranges, starts: TimeIndex) -> int:
    """How many offsets of the ranges lie before the first record of the interval."""
    return sum(
        max(0, min(r.end, _at(starts, (topic, r.partition), r.end)) - r.start)
        for topic, of in ranges.items()
        for r in of
    )


def is_behind(ranges: Ranges, starts: TimeIndex) -> bool:
    """Whether all records of the interval lie before the ranges, which are empty."""
    flat = [(r, starts.get((topic, r.partition))) for topic, of in ranges.items() for r in of]
    return all(r.start == r.end for r, _ in flat) and any(at is not None and at < r.start for r, at in flat)


def told(interval: Interval, coverage: Coverage | None, earlier: int) -> str:
    """What the epoch takes: a text without its full stop."""
    parts = [f"the records of {interval}"]
    if coverage and interval.start < coverage.end:
        parts.append(f"without those up to {_text(coverage.end)}, which were read before")
    if coverage and coverage.went_back and earlier:
        parts.append(
            f"with those before it since {_text(coverage.end)}, where a command went back to ({earlier:,} offsets)"
        )
    elif is_missed(interval, coverage, earlier):
        since = f" since {_text(coverage.end)}" if coverage else ""
        parts.append(f"with those before it{since}, which no run has read ({earlier:,} offsets)")
    elif earlier:
        parts.append(f"with {earlier:,} offsets before it, which came after their own interval was read")
    return ", ".join(parts)


def is_missed(interval: Interval, coverage: Coverage | None, earlier: int) -> bool:
    """Whether intervals before this one were left out. Where that is not known by times, offsets tell.

    They tell after a command, too: it may have gone back to a time long before the oldest record.
    """
    return interval.start > coverage.end if coverage and not coverage.went_back else earlier > 0


def _missed(interval: Interval, coverage: Coverage | None, earlier: int) -> Refused:
    so_far = f"has {earlier:,} older offsets to read"
    if coverage and not coverage.went_back:
        so_far = f"has read up to {_text(coverage.end)}"
    return Refused(
        f"The pipeline {so_far}, and the run's data interval is {interval}. The intervals in between have no epoch.",
        code=codes.INTERVAL_MISSED,
    )


def cut_off(ranges: Ranges, cluster: ClusterLog, new: Iterable[str]) -> list[str]:
    """Partitions of new topics whose oldest record is the epoch's first: retention may have deleted others before."""
    found = ((t, r, cluster.topics[t].partitions[r.partition].start) for t in new for r in ranges[t])
    return [f"{t}[{r.partition}]" for t, r, start in found if r.start == start > 0 and r.end > r.start]


def stuck(ahead: Mapping[Partition, int]) -> str:
    """What to do where the records at these offsets have times far ahead: a text without its full stop."""
    named = ", ".join(f"{topic}[{partition}] at offset {offset}" for (topic, partition), offset in ahead.items())
    behind: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in ahead.items():
        behind.setdefault(topic, {})[str(partition)] = offset + 1
    return (
        f"a record has a time more than an hour ahead: {named}. Until that time, no epoch reads it or what lies behind "
        f"it. If the time is wrong, type `airflow epochs skip PIPELINE --offsets FILE --why …`; the file has "
        f"{json.dumps(behind)}. The next epoch then reads on, without that record"
    )


def instants(interval: Interval) -> Iterator[int]:
    """The first millisecond of the interval, and the first one after it."""
    return map(ms_of, (interval.start, interval.end))


def _text(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
