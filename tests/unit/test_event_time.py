"""The watermark of an epoch: a function of completion records, the same for every attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_epochs import EventTime
from airflow_epochs.errors import BadArgument
from airflow_epochs.event_time import micros, next_watermarks, times_after
from airflow_epochs.model import CompleteRecord, EventTimes, OffsetRange, PartitionTime, Ranges
from airflow_epochs.sinks.delta.state.pinning import expired_to
from tests.support import records

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
SECOND = 1_000_000


def at(seconds: float) -> int:
    """Seconds after noon, as the records have instants."""
    return micros(NOON) + int(seconds * SECOND)


def now(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat()


def complete(event_times: EventTimes, *watermarks: int | None) -> CompleteRecord:
    return replace(records.complete(), event_times=event_times, watermarks=watermarks)


def times(*newest: float, seen: float = 0) -> EventTimes:
    return {"clicks": {str(n): PartitionTime(newest=at(s), seen=now(seen)) for n, s in enumerate(newest)}}


def test_the_first_epoch_has_no_watermark() -> None:
    assert next_watermarks(EventTime("10 s"), None, now(0)) == (None, None)


def test_it_is_the_least_of_the_partitions_newest_times_less_the_delay_less_a_microsecond() -> None:
    before = complete(times(50, 40, 60), None, None)
    assert next_watermarks(EventTime("10 s"), before, now(0)) == (at(30) - 1, None)


def test_it_never_falls_and_the_one_before_comes_with_it() -> None:
    before = complete(times(50), at(100), at(90))
    assert next_watermarks(EventTime("10 s"), before, now(0)) == (at(100), at(100))


def test_there_is_none_before_the_year_1_of_which_no_datetime_could_tell_a_transform() -> None:
    first = micros(datetime.min.replace(tzinfo=timezone.utc))
    newest = {"clicks": {"0": PartitionTime(newest=first + 10 * SECOND, seen=now(0))}}
    assert next_watermarks(EventTime("10 s"), complete(newest, None, None), now(0)) == (None, None)
    assert next_watermarks(EventTime("9 s"), complete(newest, None, None), now(0)) == (first + SECOND - 1, None)
    assert next_watermarks(EventTime("10 s"), complete(newest, at(0), None), now(0)) == (at(0), at(0))


def test_a_partition_that_is_idle_does_not_hold_it_back() -> None:
    before = complete({"clicks": {"0": PartitionTime(newest=at(5), seen=now(0)), **times(90, 80, seen=50)["clicks"]}})
    before.event_times["clicks"]["2"] = PartitionTime(newest=at(5), seen=now(0))
    event_time = EventTime(0 * timedelta(seconds=1), idle_after="60 s")
    assert next_watermarks(event_time, before, now(60)) == (at(5) - 1, None)
    assert next_watermarks(event_time, before, now(60.001)) == (at(80) - 1, None)


def test_after_a_pause_those_partitions_are_idle_that_were_so_at_the_last_rows() -> None:
    before = complete(times(50, 40), None, None)
    before.event_times["clicks"]["2"] = PartitionTime(newest=at(5), seen=now(-61))
    event_time = EventTime("0 s", idle_after="60 s")
    assert next_watermarks(event_time, before, now(3_600)) == (at(40) - 1, None)
    assert next_watermarks(EventTime("0 s", idle_after="61 s"), before, now(3_600)) == (at(5) - 1, None)


def test_it_stands_still_without_event_time_so_that_no_window_closes_twice() -> None:
    before = complete(times(50), at(20), at(10))
    assert next_watermarks(None, before, now(0)) == (at(20), at(20))
    assert next_watermarks(None, complete({}), now(0)) == ()


def test_operators_one_behind_another_get_those_of_earlier_epochs() -> None:
    before = complete(times(50), at(30), at(20), at(10))
    assert next_watermarks(EventTime("0 s", depth=2), before, now(0)) == (at(50) - 1, at(30), at(20))
    assert next_watermarks(EventTime("0 s", depth=1), before, now(0)) == (at(50) - 1, at(30))


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_a_depth_that_is_raised_brings_back_no_state_that_the_epoch_before_has_dropped(depth: int) -> None:
    before = complete(times(50), at(30), at(20), at(10))
    marks = next_watermarks(EventTime("0 s", depth=depth), before, now(0))
    dropped_by = expired_to(before.watermarks)
    assert marks[0] == at(50) - 1 and len(marks) == depth + 1
    assert dropped_by is not None and marks[-1] is not None and marks[-1] >= dropped_by
    assert list(marks) == sorted(filter(None, marks), reverse=True)


RANGES: Ranges = {"clicks": (OffsetRange(0, 0, 5), OffsetRange(1, 0, 0))}


def test_what_an_epoch_has_seen_is_added_to_what_was_seen_before() -> None:
    before = complete(times(50, 40, seen=1))
    after = times_after(before, {"clicks": {"0": at(45)}}, RANGES, now(9))
    assert after == {
        "clicks": {
            "0": PartitionTime(newest=at(50), seen=now(9)),
            "1": PartitionTime(newest=at(40), seen=now(1)),
        }
    }


def test_a_new_partition_counts_from_its_first_row_and_one_that_is_read_no_more_does_not_count() -> None:
    before = complete({"clicks": times(50)["clicks"], "gone": times(1)["clicks"]})
    after = times_after(before, {"clicks": {"1": at(7)}}, RANGES, now(9))
    assert {topic: list(per_topic) for topic, per_topic in after.items()} == {"clicks": ["0", "1"]}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10 min", timedelta(minutes=10)),
        ("10m", timedelta(minutes=10)),
        ("5 mins", timedelta(minutes=5)),
        ("1h", timedelta(hours=1)),
        ("90 seconds", timedelta(seconds=90)),
        ("250 ms", timedelta(milliseconds=250)),
        ("1.5 days", timedelta(hours=36)),
        ("2 hours", timedelta(hours=2)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_durations_are_understood(text: Any, meant: timedelta) -> None:
    assert EventTime(text).delay == meant


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"delay": "soon"}, "`delay` is 'soon'. It must be a timedelta or a text like '10 min'"),
        ({"delay": 10}, "`delay` is 10."),
        ({"delay": "99999999999999 days"}, "`delay` is '99999999999999 days'."),
        ({"delay": f"{'9' * 400} s"}, "`delay` is '999"),
        ({"delay": timedelta(seconds=-1)}, "`delay` is "),
        ({"delay": "1 h", "idle_after": "x"}, "`idle_after` is 'x'."),
        ({"delay": "1 h", "max_ahead": None}, "`max_ahead` is None."),
        ({"delay": "1 h", "depth": 0}, "`depth` is 0. It must be a whole number from 1 to 16."),
    ],
)
def test_an_argument_that_is_not_valid_is_refused_by_its_name(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(BadArgument, match="EPOCHS-EVENT-TIME-ARGUMENT") as refused:
        EventTime(**arguments)
    assert told in str(refused.value)


def test_no_time_after_the_year_9999_moves_the_watermark_however_far_ahead_a_row_may_be() -> None:
    last = micros(datetime.max.replace(tzinfo=timezone.utc))
    for ahead in (timedelta.max, timedelta(days=365 * 9000)):
        assert EventTime("0 s", max_ahead=ahead).newest_allowed("2026-01-01T00:00:00+00:00") == last
