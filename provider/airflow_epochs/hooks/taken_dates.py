"""A run that holds the logical date of an interval that is not its own: Airflow then makes no run of that interval.

Airflow allows one run for each DAG and logical date, and a run of the schedule or of a backfill has the date at which
its interval begins. A run by hand with that date has the interval before it.
"""

from __future__ import annotations

from urllib.parse import quote

from airflow_epochs.contracts import Interval
from airflow_epochs.hooks.backfills import is_by_partition
from airflow_epochs.hooks.passed_on import interval_of_run
from airflow_epochs.model import Run


def freeing(dag_id: str, interval: Interval) -> str:
    """What to do before a run of the interval can be made; empty if nothing.

    No epoch of the run that is to be deleted is unfinished: otherwise that epoch would be finished first.
    """
    holder = None if is_by_partition(dag_id) else _run_dated(dag_id, interval)
    its = interval_of_run(holder) if holder else None
    if holder is None or its == interval:
        return ""
    path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns/{quote(holder.run_id, safe='')}"
    what = f"It is of {its}, but has" if its else "It has"
    return (
        f"Delete {holder} in Airflow, when the tasks behind it have ended: *Delete Dag Run* on its page, or `DELETE "
        f"{path}` of the REST API. {what} the logical date of the run of {interval}, so Airflow makes no such run. "
        "If it has an epoch, that stays."
    )


def is_dated(run: Run, interval: Interval) -> bool:
    """Whether the run has the logical date that Airflow needs for a run of the interval: a backfill of it clears it."""
    return _run_dated(run.dag_id, interval) == run


def _run_dated(dag_id: str, interval: Interval) -> Run | None:
    """The run with the logical date that Airflow needs for a run of the interval."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(DagRun.run_id).filter_by(dag_id=dag_id, logical_date=interval.start)
        found = rows.one_or_none()
    return Run(dag_id, found[0]) if found else None
