"""Airflow's backfills: a run of one that is paused or cancelled does not start, and a command makes another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from airflow_epochs.contracts import Interval
from airflow_epochs.hooks.intervals import interval_of
from airflow_epochs.hooks.known_runs import stored_dag
from airflow_epochs.model import Run

if TYPE_CHECKING:
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.timetables.base import DagRunInfo

COMMAND = "airflow backfill create"
_BACK = [timedelta(0), *(timedelta(minutes=2**n) for n in range(23))]
"""How far before a time to look for an interval that is not over then: each step is twice as far."""
_FAR = timedelta(days=8 * 366)
"""The longest time between two intervals: two leap days may be this far apart."""
_MINUTE = timedelta(minutes=1)
_TWICE_MINUTES = 24 * 60
"""Clocks are set back by less than this."""
_OTHERS_TOO = (
    "Clocks show twice when it begins, so the dates take intervals around it, too. Those that were read already are "
    "skipped."
)


@dataclass(frozen=True)
class Halted:
    """The backfill of a run, if Airflow starts no run of it.

    Attributes:
        ended: Nobody can unpause it: it was cancelled, or its last run ended while it was paused.
    """

    number: int
    dag_id: str
    ended: bool

    def __str__(self) -> str:
        if self.ended:
            return f"backfill {self.number}, which was cancelled, or ended while it was paused"
        return f"backfill {self.number}, which is paused"

    @property
    def unpausing(self) -> str:
        """How to unpause it. ``airflow backfill`` has no command for that."""
        return (
            f"choose *Unpause backfill* on the page of DAG {self.dag_id} in Airflow, or send its REST API "
            f"`PUT /api/v2/backfills/{self.number}/unpause`"
        )


def halted(run: Run) -> Halted | None:
    """The run's backfill, if it is paused or was cancelled; None if the run has none, or Airflow starts its runs."""
    from airflow.models.backfill import Backfill
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(Backfill.id, Backfill.completed_at).join(DagRun, DagRun.backfill_id == Backfill.id)
        found = rows.filter(
            DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id, Backfill.is_paused.is_(True)
        ).one_or_none()
    return Halted(found[0], run.dag_id, found[1] is not None) if found else None


def is_by_partition(dag_id: str) -> bool:
    """Whether a backfill makes new runs of the DAG, for partitions, and does not clear those that are there."""
    dag = stored_dag(dag_id)
    return dag is not None and dag.timetable.partitioned


def of_interval(dag_id: str, interval: Interval) -> tuple[str, str]:
    """The command for a backfill of this interval, and a sentence if it takes other intervals, too; else empty.

    Both are empty if the DAG's timetable has no such interval.
    """
    dag = stored_dag(dag_id)
    dates = _dates(dag, interval) if dag else None
    if dag is None or dates is None:
        return "", ""
    first, last = dates
    again = "completed" if _is_green(dag_id, interval) else "failed"
    command = (
        f"{COMMAND} --dag-id {dag_id} --from-date {first.isoformat()} --to-date {last.isoformat()} "
        f"--reprocess-behavior {again} --max-active-runs 1"
    )
    is_alone = len([*dag.iter_dagrun_infos_between(first, last)]) == 1
    return command, "" if is_alone else _OTHERS_TOO


def next_interval(dag_id: str, time: datetime) -> Interval | None:
    """The first interval that is not over at that time, by the DAG's timetable; None if that does not tell."""
    dag = stored_dag(dag_id)
    if dag is None or not dag.timetable.periodic:
        return None
    found = next((each for each in _near(dag, time) if each.end > time), None)
    return found if found and found.start < found.end else None


def _near(dag: SerializedDAG, time: datetime) -> Iterator[Interval]:
    """Intervals from one that begins at that time, or is over by then."""
    for back in _BACK:
        first = next(_intervals(dag, time - back, time), None)
        if first and (first.start == time or first.end <= time):
            return _intervals(dag, time - back, time)
    return _intervals(dag, time, time)


def _intervals(dag: SerializedDAG, since: datetime, time: datetime) -> Iterator[Interval]:
    """The intervals that the timetable has from ``since`` until long after ``time``, as far as all have one."""
    infos = dag.iter_dagrun_infos_between(_as_date(dag, since), _as_date(dag, time + _FAR))
    for interval in (_interval(dag, info) for info in infos):
        if interval is None:
            return
        yield interval


def _as_date(dag: SerializedDAG, time: datetime) -> datetime:
    """The date by which Airflow means this time: of partitions, what clocks in the timetable's zone show then."""
    date = datetime.fromtimestamp(time.timestamp(), timezone.utc)  # a sum with Pendulum's times may lose its zone
    if dag.timetable.partitioned:
        for _ in range(2):  # the first time, the clocks may have changed between the time and the date
            meant = dag.timetable.localize_partition_datetime(date)
            date += timedelta(seconds=time.timestamp() - meant.timestamp())
    return date


def _interval(dag: SerializedDAG, info: DagRunInfo) -> Interval | None:
    of = info.data_interval
    times = {"data_interval_start": of and of.start, "data_interval_end": of and of.end}
    return interval_of({"dag": dag, **times, "partition_date": info.partition_date})


def _dates(dag: SerializedDAG, interval: Interval) -> tuple[datetime, datetime] | None:
    """The first and the last date with which ``airflow backfill create`` takes this interval, and few others."""
    for first, last in _may_be(dag, interval):
        if any(_begin(info) == interval.start for info in dag.iter_dagrun_infos_between(first, last)):
            return first, last
    return None


def _may_be(dag: SerializedDAG, interval: Interval) -> Iterator[tuple[datetime, datetime]]:
    """Dates that may be the ones: a timetable takes the interval's start, or its end."""
    start, end = _as_date(dag, interval.start), _as_date(dag, interval.end)
    yield start, start
    if dag.timetable.partitioned:
        yield _around(dag, start, interval.start)
    else:
        yield end, end


def _around(dag: SerializedDAG, date: datetime, time: datetime) -> tuple[datetime, datetime]:
    """Two dates, one minute apart, with the time between them. ``date``: of that time, or earlier.

    In autumn, clocks show an hour twice, and Airflow takes a date in it for the second time: no date means the first.
    """
    later = (date + n * _MINUTE for n in range(_TWICE_MINUTES))
    last = next((each for each in later if dag.timetable.localize_partition_datetime(each) >= time), date)
    return last - _MINUTE, last


def _begin(info: DagRunInfo) -> datetime:
    begin = info.partition_date or info.logical_date
    assert begin, "a periodic timetable gives each run one of them"
    return begin


def _is_green(dag_id: str, interval: Interval) -> bool:
    """Whether the newest run of the interval is green: only a backfill that says so runs it again."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(DagRun.state).filter(DagRun.dag_id == dag_id)
        its = rows.filter((DagRun.data_interval_start == interval.start) | (DagRun.partition_date == interval.start))
        newest = its.order_by(DagRun.id.desc()).first()
    return newest is not None and str(newest[0]) == "success"
