"""The data interval of a run, as its timetable makes it; or the time that its partition is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from pendulum import DateTime

    from airflow_epochs.contracts import Interval


def interval_of(context: Mapping[str, Any]) -> Interval | None:
    """The run's data interval, or its partition's; None if it has neither, such as a run for an asset event.

    ``context``: of a task, or what it has of a run and of its DAG.
    """
    from airflow_epochs.contracts import Interval

    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    begin = context.get("partition_date")
    if begin and start == end:  # a run by hand with a partition key may have a logical date, too
        return _of_partition(context["dag"], begin)
    return Interval(start, end) if start and end else None


def _of_partition(dag: DAG, begin: DateTime) -> Interval | None:
    """From ``begin`` until the next partition begins; None if the timetable makes no partitions by time."""
    from airflow.serialization.encoders import coerce_to_core_timetable
    from airflow.timetables.base import DagRunInfo, TimeRestriction
    from airflow.timetables.trigger import CronPartitionTimetable

    from airflow_epochs.contracts import Interval

    timetable = coerce_to_core_timetable(dag.timetable)
    if not isinstance(timetable, CronPartitionTimetable):
        return None
    after = timetable.next_dagrun_info_v2(
        last_dagrun_info=DagRunInfo(run_after=begin, data_interval=None, partition_date=begin, partition_key=""),
        restriction=TimeRestriction(earliest=None, latest=None, catchup=True),
    )
    return Interval(begin, after.run_after) if after else None
