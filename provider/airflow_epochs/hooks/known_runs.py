"""What Airflow's database knows of runs and DAGs, for actions of operators."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.own_tasks import own_tasks
from airflow_epochs.model import Run

if TYPE_CHECKING:
    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy.orm import Session

RUNNING = "running"
QUEUED = "queued"
FAILED = "failed"
ACTIVE = (RUNNING, QUEUED)


def state_of(run: Run) -> str | None:
    """The run's state, as Airflow names it; None if Airflow does not know the run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(DagRun.state).filter_by(dag_id=run.dag_id, run_id=run.run_id).one_or_none()
    return str(found[0]) if found else None


def newest_run(dag_id: str, *states: str, with_interval: bool = False) -> tuple[Run, str] | None:
    """The newest run in one of these states, and its state; without states: of all runs.

    ``with_interval``: only runs with a data interval or a partition of time.
    """
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(DagRun.run_id, DagRun.state).filter_by(dag_id=dag_id)
        rows = rows.filter(DagRun.state.in_(states)) if states else rows
        found = (rows.filter(_has_interval()) if with_interval else rows).order_by(DagRun.id.desc()).first()
    return (Run(dag_id, found[0]), str(found[1])) if found else None


def failed_run_at(dag_id: str, begin: datetime) -> Run | None:
    """The newest failed run whose data interval, or partition of time, begins then."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(DagRun.run_id).filter_by(dag_id=dag_id, state=FAILED)
        found = rows.filter(_has_interval(), _begin() == begin).order_by(DagRun.id.desc()).first()
    return Run(dag_id, found[0]) if found else None


def latest_runs(dag_id: str) -> list[Run]:
    """The runs with a data interval or a partition of time, the latest first."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(DagRun.run_id).filter_by(dag_id=dag_id).filter(_has_interval())
        return [Run(dag_id, row[0]) for row in rows.order_by(_begin().desc(), DagRun.id.desc())]


def _begin() -> Any:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import func

    return func.coalesce(DagRun.partition_date, DagRun.data_interval_start)


def _has_interval() -> Any:
    from airflow.models.dagrun import DagRun

    return (DagRun.data_interval_start < DagRun.data_interval_end) | DagRun.partition_date.is_not(None)


def knows_dag(dag_id: str) -> bool:
    """Whether Airflow has the DAG today."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.get(DagModel, dag_id)
        return found is not None and not found.is_stale


def stored_dag(dag_id: str) -> SerializedDAG | None:
    """The newest version of the DAG that Airflow has stored; None if it has none."""
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session

    with create_session() as session:
        return DBDagBag().get_latest_version_of_dag(dag_id, session=session)


def dag_again(run: Run) -> SerializedDAG | None:
    """The DAG as the run has it if ``airflow epochs retry`` clears it; the newest version if Airflow forgot the run."""
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(DagRun).filter_by(dag_id=run.dag_id, run_id=run.run_id).one_or_none()
        if found and not is_newest_again(run.dag_id, session):
            return DBDagBag().get_dag_for_run(found, session=session)
    return stored_dag(run.dag_id)


def is_newest_again(dag_id: str, session: Session) -> bool:
    """Whether a run that is cleared gets the newest version of its DAG: unless the DAG or the configuration forbids."""
    from airflow.api_fastapi.common.dagbag import resolve_run_on_latest_version

    return resolve_run_on_latest_version(None, dag_id, session, fallback=True)


def is_at_work(pipeline: str, run: Run, ledger_conn_id: str = "") -> bool:
    """Whether the run will yet do something for the pipeline: it is active, and not all of its tasks have ended.

    Other tasks of the DAG, and other pipelines, may go on for hours after a sink's commit has failed for good.
    """
    from airflow.models.taskinstance import TaskInstance as Task
    from airflow.utils.session import create_session
    from airflow.utils.state import State

    if state_of(run) not in ACTIVE:
        return False
    with create_session() as session:
        rows = session.query(Task.task_id, Task.operator, Task.state)
        tasks = rows.filter_by(dag_id=run.dag_id, run_id=run.run_id).all()
    ours = own_tasks(pipeline, run.dag_id, tasks, ledger_conn_id)
    return not ours or any(task.state not in State.finished for task in ours)


def no_dag(pipeline: str, dag_id: str) -> Refused:
    """The error for a DAG that Airflow does not have."""
    return Refused(f"Airflow has no DAG {dag_id!r}.", code=codes.RETRY_REFUSED, pipeline=pipeline)
