"""Which records the epoch of a data interval has: pure, so every case is spelled out or drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_epochs import KafkaSource, codes
from airflow_epochs.contracts import Interval, Position
from airflow_epochs.errors import NoNewData, Refused
from airflow_epochs.model import JsonDict, OffsetRange, Ranges
from airflow_epochs.sources.kafka.interval import (
    Coverage,
    began_of,
    coverage_of,
    cut_off,
    plan,
    planned_for,
    recorded,
    require_interval,
    require_unread,
)
from airflow_epochs.sources.kafka.logs import ClusterLog, Log, TopicLog
from airflow_epochs.sources.kafka.moves import to_another, to_offsets, to_time
from airflow_epochs.sources.kafka.starting import AtTime, ms_of

DAY = datetime(2026, 1, 31, tzinfo=timezone.utc)


def hour(number: float) -> datetime:
    return DAY + timedelta(hours=number)


def hours(start: float, end: float) -> Interval:
    return Interval(hour(start), hour(end))


def read_up_to(end: float, since: float = 0) -> Coverage:
    return Coverage(hour(since), hour(end))


class Records:
    """One partition: the hour of each record, by offset. They need not be in order."""

    def __init__(self, times: Sequence[float]) -> None:
        self.times = times

    def first_at(self, time: datetime) -> int | None:
        return next((offset for offset, at in enumerate(self.times) if hour(at) >= time), None)

    def epoch(self, position: int, interval: Interval, coverage: Coverage | None, **options: bool) -> tuple[range, str]:
        """The offsets that the interval's epoch reads from ``position`` on, and what it says."""
        available: Ranges = {"t": (OffsetRange(0, position, max(position, len(self.times))),)}
        starts, ends = ({("t", 0): self.first_at(time)} for time in (interval.start, interval.end))
        ranges, told = plan(interval, coverage, available, starts, ends, **options)
        [[_, start, end]] = ranges["t"]
        return range(start, end), told


# --- one epoch ------------------------------------------------------------------------------------------------


def test_a_record_at_the_start_belongs_to_the_interval_and_one_at_the_end_does_not() -> None:
    offsets, told = Records([8.99, 9, 9.5, 9.99, 10, 10.5]).epoch(1, hours(9, 10), read_up_to(9))
    assert offsets == range(1, 4)
    assert told == "the records of [2026-01-31T09:00:00+00:00, 2026-01-31T10:00:00+00:00)"


def test_an_interval_without_records_is_an_empty_epoch() -> None:
    assert Records([8, 11]).epoch(1, hours(9, 10), read_up_to(9))[0] == range(1, 1)


def test_a_record_that_came_too_late_is_in_the_next_epoch_and_is_counted() -> None:
    offsets, told = Records([9.5, 10.1, 9.9, 10.2, 11]).epoch(1, hours(10, 11), read_up_to(10))
    assert offsets == range(1, 4)
    assert "before" not in told, "it lies behind the interval's first record, so no timestamp index tells of it"
    assert (
        "1 offsets before it, which came after" in Records([9.5, 9.9, 10.1]).epoch(1, hours(10, 11), read_up_to(10))[1]
    )


def test_an_epoch_takes_the_records_of_missed_intervals_and_says_so() -> None:
    offsets, told = Records([9.5, 10.5, 11.5, 12.5]).epoch(1, hours(12, 13), read_up_to(10))
    assert offsets == range(1, 4)
    assert "with those before it since 2026-01-31T10:00:00+00:00, which no run has read (2 offsets)" in told


@pytest.mark.parametrize("coverage", [read_up_to(10), None], ids=["by times", "by offsets"])
def test_missed_intervals_can_be_refused(coverage: Coverage | None) -> None:
    records = Records([9.5, 10.5, 11.5, 12.5])
    with pytest.raises(Refused, match="The intervals in between have no epoch") as error:
        records.epoch(1, hours(12, 13), coverage, refuse_missed=True)
    assert error.value.code is codes.INTERVAL_MISSED
    assert records.epoch(1, hours(10, 11), coverage, refuse_missed=True)[0] == range(1, 2)


def test_missed_intervals_without_records_are_refused_too() -> None:
    with pytest.raises(Refused, match="has read up to 2026-01-31T10"):
        Records([9.5]).epoch(1, hours(12, 13), read_up_to(10), refuse_missed=True)


def test_of_an_interval_that_was_read_in_part_the_rest_is_read() -> None:
    offsets, told = Records([0.5, 1.5, 20.5]).epoch(2, hours(0, 24), read_up_to(3))
    assert offsets == range(2, 3)
    assert "without those up to 2026-01-31T03:00:00+00:00, which were read before" in told


def test_an_interval_behind_the_position_is_refused_where_offsets_alone_tell() -> None:
    records = Records([9.5, 10.5, 11.5])
    with pytest.raises(Refused, match="goes on behind its records") as error:
        records.epoch(2, hours(9, 10), None)
    assert error.value.remedy and "--to-timestamp 2026-01-31T09:00:00+00:00" in error.value.remedy
    assert records.epoch(3, hours(12, 13), None)[0] == range(3, 3), "nothing came in this hour"


# --- what was read --------------------------------------------------------------------------------------------


def test_a_run_has_an_interval_with_a_duration() -> None:
    assert require_interval(hours(1, 2)) == hours(1, 2)
    for none in (None, hours(1, 1)):
        with pytest.raises(Refused) as error:
            require_interval(none)
        assert error.value.code is codes.INTERVAL_MISSING


@pytest.mark.parametrize(
    ("interval", "kind", "code"),
    [
        (hours(9, 10), NoNewData, codes.INTERVAL_COVERED),
        (hours(5, 10), NoNewData, codes.INTERVAL_COVERED),
        (hours(4, 10), Refused, codes.INTERVAL_BEFORE),
        (hours(3, 4), Refused, codes.INTERVAL_BEFORE),
        (hours(9, 10.5), None, None),
    ],
)
def test_an_interval_is_read_once_from_where_the_pipeline_began(
    interval: Interval, kind: type[Exception] | None, code: object
) -> None:
    check: Callable[[], None] = partial(require_unread, interval, read_up_to(10, since=5), [])
    if kind is None:
        return check()
    with pytest.raises(kind) as error:
        check()
    assert getattr(error.value, "code", None) is code


def test_what_is_on_record_says_which_interval_and_since_when_none_is_left_out() -> None:
    first = {"interval": recorded(hours(5, 6), None)}
    later = {"interval": recorded(hours(8, 9), coverage_of(first))}
    assert coverage_of(later) == read_up_to(9, since=5)
    assert KafkaSource("t").planned_for(later) == planned_for(later) == hours(8, 9) != hours(5, 6)
    assert planned_for({}) is None


def test_a_new_topic_without_its_oldest_records_is_told() -> None:
    log = TopicLog(None, {0: Log(3, 9), 1: Log(0, 9), 2: Log(3, 9), 3: Log(3, 3)})
    ranges = {"t": tuple(OffsetRange(p, start, end) for p, start, end in [(0, 3, 5), (1, 0, 5), (2, 4, 5), (3, 3, 3)])}
    assert cut_off(ranges, ClusterLog(None, {"t": log}), ["t"]) == ["t[0]"]


def test_records_that_are_read_again_are_no_longer_known_as_read_and_others_are() -> None:
    log = ClusterLog("c", {"t": TopicLog("id", {0: Log(0, 9)})})
    state = {"cluster_id": "c", "topic_ids": {"t": "id"}, "interval": recorded(hours(5, 6), None)}
    at = Position(ranges={"t": (OffsetRange(0, 2, 6),)}, state=state)
    back = to_offsets(at, {"t": {0: 3}}, log).position.state
    assert coverage_of(back) is None
    assert recorded(hours(9, 10), None, began_of(back))["since"] == hour(5).isoformat(), "older hours stay known"
    assert coverage_of(to_offsets(at, {"t": {0: 8}}, log).position.state) == read_up_to(6, since=5)
    assert coverage_of(to_another(at, ["t"], AtTime(0), log, {("t", 0): 0}).position.state) is None


@pytest.mark.parametrize(
    ("to", "since", "end"),
    [(8, 6, 8), (9.5, 6, 9.5), (5, 5, 5), (10, 6, 10)],
    ids=["within", "within an hour", "before the beginning", "to the end"],
)
def test_after_a_command_that_went_back_to_a_time_what_lies_before_it_is_known_as_read(
    to: float, since: float, end: float
) -> None:
    log = ClusterLog("c", {"t": TopicLog("id", {0: Log(0, 9)})})
    state = {"cluster_id": "c", "topic_ids": {"t": "id"}, "interval": recorded(hours(9, 10), read_up_to(9, since=6))}
    at = Position(ranges={"t": (OffsetRange(0, 2, 6),)}, state=state)
    found = to_time(at, ms_of(hour(to)), log, {("t", 0): 3}).position.state
    assert coverage_of(found) == Coverage(hour(since), hour(end), went_back=True)
    assert planned_for(found) is None and KafkaSource("t").planned_for(found) is None
    again = to_time(Position(ranges={"t": (OffsetRange(0, 3, 3),)}, state=found), ms_of(hour(9)), log, {("t", 0): 5})
    assert coverage_of(again.position.state) == coverage_of(found), "a later time is no way back"


def test_after_a_command_that_went_back_to_a_time_before_all_records_no_hour_is_missed() -> None:
    went_back = Coverage(hour(-9999), hour(-9999), went_back=True)
    assert Records([9.5, 10.5]).epoch(0, hours(9, 10), went_back, refuse_missed=True)[0] == range(1)
    with pytest.raises(Refused, match=r"has 1 older offsets to read, .* The intervals in between have no epoch"):
        Records([9.5, 10.5]).epoch(0, hours(10, 11), went_back, refuse_missed=True)
    told = Records([9.5, 10.5]).epoch(0, hours(10, 11), Coverage(hour(8), hour(9), went_back=True))[1]
    assert "with those before it since 2026-01-31T09:00:00+00:00, where a command went back to (1 offsets)" in told


# --- any history ----------------------------------------------------------------------------------------------

HOURS = 8


@pytest.mark.proof
@settings(max_examples=200)
@given(
    times=st.lists(st.floats(0, HOURS, exclude_max=True, width=16), max_size=30),
    there=st.lists(st.integers(0, 30), min_size=12, max_size=12).map(sorted),
    runs=st.lists(st.tuples(st.integers(0, HOURS - 1), st.integers(1, 3)), min_size=12, max_size=12),
)
def test_whatever_runs_in_whatever_order_no_record_is_lost_doubled_or_too_early(
    times: list[float], there: list[int], runs: list[tuple[int, int]]
) -> None:
    """``there``: how many records each run finds. A last run finds all, and its interval is the last."""
    begun = position = None
    state: JsonDict = {}
    for found, (start, length) in [*zip(there, runs, strict=True), (len(times), (HOURS + 3, 1))]:
        interval, records, covered = hours(start, start + length), Records(times[:found]), coverage_of(state)
        try:
            require_unread(interval, covered, [])
        except (NoNewData, Refused):
            assert covered and interval.end <= covered.end
            continue
        if position is None:
            first = records.first_at(interval.start)
            begun = position = len(records.times) if first is None else first
        offsets, _ = records.epoch(position, interval, covered)
        assert offsets.start == position, "epochs have no gaps between them"
        assert all(hour(times[offset]) < interval.end for offset in offsets), "no record is too new"
        assert offsets.stop == len(records.times) or hour(times[offsets.stop]) >= interval.end, "none is left behind"
        position, state = offsets.stop, {"interval": recorded(interval, covered)}
    assert begun is not None and position == len(times), "every record from the beginning on was read"
