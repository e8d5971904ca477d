"""Which data interval a run has that somebody starts by hand, as Airflow's own timetables make it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import (
    DAG,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
)
from pendulum import instance

from airflow_epochs import codes
from airflow_epochs.contracts import Interval
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.intervals import interval_of
from airflow_epochs.sources.kafka.interval import require_interval

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]

HOUR = timedelta(hours=1)
KEY = "2026-11-29T20:00:00"


def utc(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-29T{clock}+00:00")


def partitions(zone: str = "UTC") -> CronPartitionTimetable:
    return CronPartitionTimetable("@hourly", timezone=zone, run_offset=-1)


def by_hand(schedule: Any, date: datetime | None, key: str | None = None) -> Interval | None:
    """The interval of a run that Airflow's REST API makes of a logical date and a partition key."""
    from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("hourly", schedule=schedule, start_date=utc("00:00")) as dag:
        pass
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    made = TriggerDAGRunPostBody(logical_date=date, partition_key=key).validate_context(stored)
    its, begin = made["data_interval"], made["partition_date"]
    times = {"data_interval_start": its.start, "data_interval_end": its.end} if its else {}
    return interval_of({"dag": stored, **times, "partition_date": begin and instance(begin)})


@pytest.mark.parametrize(
    ("schedule", "start", "end"),
    [
        (CronDataIntervalTimetable("@hourly", timezone="UTC"), "19:00", "20:00"),
        (DeltaDataIntervalTimetable(HOUR), "19:58", "20:58"),
        (CronTriggerTimetable("@hourly", timezone="UTC", interval=HOUR), "19:58", "20:58"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_by_hand_with_a_logical_date_has_the_interval_that_the_page_says(
    schedule: Any, start: str, end: str
) -> None:
    assert by_hand(schedule, utc("20:58")) == Interval(utc(start), utc(end))
    assert by_hand(schedule, None) is None


@pytest.mark.parametrize(
    "schedule",
    [partitions(), CronTriggerTimetable("@hourly", timezone="UTC"), "@hourly"],
    ids=["partitions", "no interval=", "a cron text"],
)
def test_other_timetables_make_no_interval_of_a_logical_date(schedule: Any) -> None:
    with pytest.raises(Refused) as refused:
        require_interval(by_hand(schedule, utc("20:58")))
    assert refused.value.code is codes.INTERVAL_MISSING
    assert "with a partition key" in refused.value.remedy


@pytest.mark.parametrize("date", [None, utc("20:58")], ids=["without a date", "with a date"])
@pytest.mark.parametrize(("zone", "start"), [("UTC", "20:00"), ("Europe/Zurich", "19:00")])
def test_a_run_by_hand_with_a_partition_key_has_the_interval_of_that_partition(
    date: datetime | None, zone: str, start: str
) -> None:
    assert by_hand(partitions(zone), date, KEY) == Interval(utc(start), utc(start) + HOUR)
