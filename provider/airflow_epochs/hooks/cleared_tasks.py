"""Which tasks of a run are cleared, so that it goes on: those that failed, were skipped, or are not done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs.hooks.known_runs import FAILED, dag_again, is_newest_again, no_dag, state_of, stored_dag
from airflow_epochs.hooks.own_tasks import ALL_IN_ONE, own_tasks
from airflow_epochs.hooks.passed_on import epoch_passed_on
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import unfinished
from airflow_epochs.ledger.run_ids import airflow_run
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import Run
from airflow_epochs.protocol import State

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_NOT_GREEN = (FAILED, "upstream_failed", "skipped")


def clear(ledger: Ledger, pipeline: str, run: Run) -> None:
    """Clear the tasks of a run that failed, were skipped or are green but not done.

    All tasks are cleared if there is no such task, or if the run did not fail. They run with the newest version of the
    DAG's bundle, unless the DAG or Airflow's configuration keeps the old one: most retries follow a correction of the
    code. What Airflow has deleted of the run's tasks it gets again.
    """
    from airflow.utils.session import create_session

    tasks = _to_clear(ledger, pipeline, run)
    dag = stored_dag(run.dag_id)
    if dag is None:
        raise no_dag(pipeline, run.dag_id)
    with create_session() as session:
        newest = is_newest_again(run.dag_id, session)
        _restore_tasks(run, session)
        dag.clear(run_id=run.run_id, task_ids=tasks or None, session=session, run_on_latest_version=newest)


def _restore_tasks(run: Run, session: Session) -> None:
    """Give a run the tasks of its version of the DAG that it lacks: ``airflow db clean`` may keep a run alone.

    If a run has no tasks, Airflow clears nothing, and ends the run at once. If only the newer tasks are left, such as a
    commit that was tried again, Airflow ends the run because they wait for the others (a "deadlock").
    """
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagrun import DagRun

    found = session.query(DagRun).filter_by(dag_id=run.dag_id, run_id=run.run_id).one()
    dag = DBDagBag().get_dag_for_run(found, session=session)
    left = {task.task_id for task in found.get_task_instances(session=session)}
    if dag is None or dag.task_dict.keys() <= left:
        return
    version = found.created_dag_version if found.bundle_version else None
    version = version or DagVersion.get_latest_version(run.dag_id, session=session)
    assert version  # the DAG is stored
    found.dag = dag
    found.verify_integrity(dag_version_id=version.id, session=session)


def _to_clear(ledger: Ledger, pipeline: str, run: Run) -> list[tuple[str, int]]:
    """The tasks to clear, by id and map index; empty: all tasks."""
    return [*not_green(run), *marked_green(ledger, pipeline, run)]


def operators_again(ledger: Ledger, pipeline: str, run: Run) -> set[str]:
    """The operators of the pipeline's tasks that ``clear`` lets run again."""
    from airflow.models.taskinstance import TaskInstance as Task
    from airflow.utils.session import create_session

    tasks = _to_clear(ledger, pipeline, run)
    with create_session() as session:
        rows = session.query(Task.task_id, Task.map_index, Task.operator)
        all_of_run = rows.filter_by(dag_id=run.dag_id, run_id=run.run_id).all()
    ours = own_tasks(pipeline, run.dag_id, all_of_run)
    return {task.operator for task in ours if not tasks or (task.task_id, task.map_index) in tasks}


def not_green(run: Run) -> list[tuple[str, int]]:
    """The tasks of a failed run that failed or were skipped: id and map index. Empty if the run did not fail.

    If somebody marks a run as failed, or it has lasted longer than ``dagrun_timeout``, Airflow skips what has not
    finished. Tasks that a green run skips too, such as ``abort``, are among them: cleared, they are skipped again by
    their trigger rules, or run if the tasks before them now fail.
    """
    from airflow.models.taskinstance import TaskInstance as Task
    from airflow.utils.session import create_session

    if state_of(run) != FAILED:
        return []
    with create_session() as session:
        rows = session.query(Task.task_id, Task.map_index).filter_by(dag_id=run.dag_id, run_id=run.run_id)
        return [(task_id, index) for task_id, index in rows.filter(Task.state.in_(_NOT_GREEN))]


def marked_green(ledger: Ledger, pipeline: str, run: Run) -> list[tuple[str, int]]:
    """The pipeline's green tasks of a failed run that the ledger says are not done: somebody marked them as success.

    Without them, the run would fail again in the same place for ever. Those of a layout that the DAG had before run no
    more.
    """
    from airflow.models.taskinstance import TaskInstance as Task
    from airflow.utils.session import create_session

    if state_of(run) != FAILED:
        return []
    view = unfinished(ledger)
    if view is None or airflow_run(ledger, view.opened.run) != run:
        if epoch_passed_on(ledger, run) is not None:
            return []
        view = None
    with create_session() as session:
        rows = session.query(Task.task_id, Task.map_index, Task.operator, Task.state)
        ours = rows.filter_by(dag_id=run.dag_id, run_id=run.run_id).filter(Task.operator.in_(_undone(None))).all()
    undone, dag = _undone(view), dag_again(run)
    # Perhaps also tasks of a pipeline of this name with another ledger: a task whose work is done does nothing.
    return [
        (task_id, index)
        for task_id, index, operator, state in own_tasks(pipeline, run.dag_id, ours)
        if state == "success" and _is_undone(f".{task_id}", undone.get(operator or "", ()))
        if dag is None or task_id in dag.task_dict
    ]


def _is_undone(task_id: str, ends: tuple[str, ...]) -> bool:
    """Whether the id ends so. An id of the user's own does not tell the sink: it may be any."""
    return task_id.endswith(ends) or (bool(ends) and ".commit." not in task_id)


def _undone(view: EpochView | None) -> dict[str, tuple[str, ...]]:
    """Operator -> how the ids of its tasks end that have yet to do something for the epoch; None: it is not opened."""
    if view is not None and view.state is State.IN_DOUBT:
        waits = tuple(f".commit.{sink}" for sink in view.epoch.unacknowledged)
        return {"CommitSinkOperator": waits, "CompleteEpochOperator": ("",), ALL_IN_ONE: ("",)}
    undecided = dict.fromkeys(("VoteEpochOperator", "CommitSinkOperator", "CompleteEpochOperator"), ("",))
    unopened = {"OpenEpochOperator": ("",), "StageEpochOperator": ("",)} if view is None else {}
    return {**unopened, **undecided, ALL_IN_ONE: ("",)}
