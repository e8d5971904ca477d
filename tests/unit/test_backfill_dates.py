"""Which data interval is read next, and the dates with which ``airflow backfill create`` takes just that one."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk import (
    DAG,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
)

from airflow_epochs.hooks import backfills

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]


def partitions(cron: str, zone: str) -> CronPartitionTimetable:
    return CronPartitionTimetable(cron, timezone=zone, run_offset=-1)


def intervals(cron: str, zone: str = "UTC") -> CronDataIntervalTimetable:
    return CronDataIntervalTimetable(cron, timezone=zone)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let Airflow have a DAG with this schedule."""

    def store(schedule: Any) -> Any:
        from airflow.serialization.serialized_objects import DagSerialization

        with DAG("daily", schedule=schedule, start_date=utc("2026-01-01T00:00")) as dag:
            pass
        found = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        monkeypatch.setattr(backfills, "stored_dag", lambda dag_id: found)
        monkeypatch.setattr(backfills, "_is_green", lambda dag_id, interval: False)
        return found

    return store


@pytest.mark.parametrize(
    ("schedule", "time", "start", "end"),
    [
        (intervals("@hourly"), "2026-11-20T02:30", "2026-11-20T02:00", "2026-11-20T03:00"),
        (intervals("@hourly"), "2026-11-20T03:00", "2026-11-20T03:00", "2026-11-20T04:00"),
        (intervals("@daily", "America/New_York"), "2026-11-20T04:59", "2026-11-19T05:00", "2026-11-20T05:00"),
        (intervals("@monthly"), "2026-10-31T23:00", "2026-10-01T00:00", "2026-11-01T00:00"),
        (intervals("0 0 29 2 *"), "2026-01-01T00:00", "2024-02-29T00:00", "2028-02-29T00:00"),
        (intervals("*/5 9-17 * * mon-fri"), "2026-11-22T12:00", "2026-11-20T17:55", "2026-11-23T09:00"),
        (partitions("@hourly", "Europe/Zurich"), "2026-11-20T02:30", "2026-11-20T02:00", "2026-11-20T03:00"),
        (partitions("@daily", "America/New_York"), "2026-11-20T12:00", "2026-11-20T05:00", "2026-11-21T05:00"),
        (partitions("@daily", "Asia/Kathmandu"), "2026-11-20T12:00", "2026-11-19T18:15", "2026-11-20T18:15"),
        (
            CronTriggerTimetable("@hourly", timezone="UTC", interval=timedelta(hours=1)),
            "2026-11-20T02:30",
            "2026-11-20T02:00",
            "2026-11-20T03:00",
        ),
        (DeltaDataIntervalTimetable(timedelta(minutes=7)), "2026-11-20T02:30", "2026-11-20T02:30", "2026-11-20T02:37"),
        (
            DeltaDataIntervalTimetable(timedelta(seconds=5)),
            "2026-11-20T02:30",
            "2026-11-20T02:30",
            "2026-11-20T02:30:05",
        ),
    ],
)
def test_the_next_interval_is_the_one_in_which_the_time_lies(
    stored: Any, schedule: Any, time: str, start: str, end: str
) -> None:
    stored(schedule)
    found = backfills.next_interval("daily", utc(time))
    assert found and (found.start, found.end) == (utc(start), utc(end))


def test_a_schedule_of_runs_without_duration_has_no_next_interval(stored: Any) -> None:
    stored(CronTriggerTimetable("* * * * *", timezone="UTC"))
    assert backfills.next_interval("daily", utc("2026-01-01T00:00")) is None


@pytest.mark.parametrize("seconds", [0, 30])
@pytest.mark.parametrize("schedule", [intervals("* * * * *"), partitions("* * * * *", "Asia/Tokyo")])
def test_of_short_intervals_few_are_looked_at(
    stored: Any, monkeypatch: pytest.MonkeyPatch, schedule: Any, seconds: int
) -> None:
    stored(schedule)
    looked_at = Mock(wraps=backfills._interval)
    monkeypatch.setattr(backfills, "_interval", looked_at)
    time = utc("2026-11-20T02:30") + timedelta(seconds=seconds)
    found = backfills.next_interval("daily", time)
    assert found and found.start <= time < found.end
    assert looked_at.call_count < 10


@pytest.mark.parametrize(
    ("schedule", "start", "date"),
    [
        (intervals("@daily", "America/New_York"), "2026-11-20T05:00", "2026-11-20T05:00"),
        (partitions("@daily", "UTC"), "2026-11-20T00:00", "2026-11-20T00:00"),
        (partitions("@daily", "Europe/Zurich"), "2026-11-19T23:00", "2026-11-20T00:00"),
        (partitions("@daily", "America/New_York"), "2026-11-20T05:00", "2026-11-20T00:00"),
        (partitions("@daily", "Asia/Kathmandu"), "2026-11-19T18:15", "2026-11-20T00:00"),
        (partitions("@daily", "Pacific/Kiritimati"), "2026-11-19T10:00", "2026-11-20T00:00"),
        (partitions("0 */6 * * *", "America/New_York"), "2026-11-20T11:00", "2026-11-20T06:00"),
        (partitions("@hourly", "America/New_York"), "2026-11-01T07:00", "2026-11-01T02:00"),
        (partitions("@hourly", "America/New_York"), "2026-03-08T07:00", "2026-03-08T03:00"),
    ],
)
def test_the_command_has_the_date_by_which_airflow_takes_just_the_interval(
    stored: Any, schedule: Any, start: str, date: str
) -> None:
    from airflow.models.backfill import _get_info_list

    dag = stored(schedule)
    interval = backfills.next_interval("daily", utc(start))
    assert interval and interval.start == utc(start)
    command, others = backfills.of_interval("daily", interval)
    assert (re.findall(r"--(?:from|to)-date (\S+)", command), others) == ([utc(date).isoformat()] * 2, "")
    (taken,) = _get_info_list(from_date=utc(date), to_date=utc(date), reverse=False, dag=dag)
    assert (taken.partition_date or taken.logical_date) == utc(start)


@pytest.mark.parametrize(
    ("schedule", "start", "dates", "taken"),
    [
        (
            partitions("@hourly", "Europe/Zurich"),
            "2026-10-25T00:00",
            ("2026-10-25T01:59", "2026-10-25T02:00"),
            ["2026-10-25T00:00", "2026-10-25T01:00"],
        ),
        (
            partitions("@hourly", "America/Havana"),
            "2026-11-01T04:00",
            ("2026-10-31T23:59", "2026-11-01T00:00"),
            ["2026-11-01T04:00", "2026-11-01T05:00"],
        ),
        (
            partitions("*/30 * * * *", "Europe/Zurich"),
            "2026-10-25T00:30",
            ("2026-10-25T01:59", "2026-10-25T02:00"),
            ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T01:00"],
        ),
        (
            partitions("30 * * * *", "Europe/Zurich"),
            "2026-10-25T00:30",
            ("2026-10-25T01:59", "2026-10-25T02:00"),
            ["2026-10-25T00:30"],
        ),
    ],
)
def test_of_an_hour_that_clocks_show_twice_the_dates_take_the_first_one_and_few_intervals_around_it(
    stored: Any, schedule: Any, start: str, dates: tuple[str, str], taken: list[str]
) -> None:
    from airflow.models.backfill import _get_info_list

    dag = stored(schedule)
    interval = backfills.next_interval("daily", utc(start))
    assert interval and interval.start == utc(start)
    command, others = backfills.of_interval("daily", interval)
    assert re.findall(r"--(?:from|to)-date (\S+)", command) == [utc(date).isoformat() for date in dates]
    first, last = map(utc, dates)
    infos = _get_info_list(from_date=first, to_date=last, reverse=False, dag=dag)
    assert [info.partition_date for info in infos] == list(map(utc, taken))
    assert ("Those that were read already are skipped." in others) == (len(taken) > 1)
