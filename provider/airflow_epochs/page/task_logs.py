"""Where Airflow keeps the logs of the tasks that worked on an epoch, as far as its database still knows them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from airflow_epochs.hooks.own_tasks import name_inside, own_tasks
from airflow_epochs.ledger.epoch_records import EpochRecords
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.run_ids import airflow_run
from airflow_epochs.model import Run
from airflow_epochs.page.access import GetUserDep, readable_dags


@dataclass(frozen=True)
class TaskLog:
    """A task of the pipeline that has begun, and what leads to its log.

    Attributes:
        name: The task's id inside the pipeline's group, such as ``commit.users``.
        state: As Airflow names it; empty while the task waits for its next try.
        path: Below Airflow's UI. The page there has the logs of all tries.
    """

    name: str
    state: str
    path: str


def task_logs(
    user: GetUserDep, ledger: Ledger, conn_id: str, pipeline: str, records: EpochRecords
) -> dict[Run, list[TaskLog]]:
    """Run -> its tasks in the order in which they began. Only runs of DAGs that the user may read."""
    runs = dict.fromkeys(airflow_run(ledger, run) for run in _runs(records))
    readable = readable_dags(user, {run.dag_id for run in runs})
    found: dict[Run, list[TaskLog]] = {run: [] for run in runs if run.dag_id in readable}
    for run, begun in _begun(found).items():
        for task in own_tasks(pipeline, run.dag_id, begun, conn_id):
            path = _path(run, task.task_id, task.map_index)
            found[run].append(TaskLog(name_inside(pipeline, task.task_id), str(task.state or ""), path))
    return {run: tasks for run, tasks in found.items() if tasks}


def _runs(records: EpochRecords) -> Iterator[Run]:
    yield from (attempt.opened.run for attempt in records.attempts if not attempt.opened.command)
    if records.complete:
        yield from (records.complete.opened_by, records.complete.completed_by)


def _begun(runs: Collection[Run]) -> dict[Run, list[Any]]:
    """Run -> its tasks that have begun, in the order in which they did: rows of Airflow's database."""
    from airflow.models.taskinstance import TaskInstance as Task
    from airflow.utils.session import create_session
    from sqlalchemy import tuple_

    columns = (Task.dag_id, Task.run_id, Task.task_id, Task.map_index, Task.operator, Task.state)
    named = tuple_(Task.dag_id, Task.run_id).in_([(run.dag_id, run.run_id) for run in runs])
    with create_session() as session:
        rows = session.query(*columns).filter(named, Task.try_number > 0, Task.start_date.is_not(None))
        begun = rows.order_by(Task.start_date, Task.task_id).all()
    of_run: dict[Run, list[Any]] = {}
    for task in begun:
        of_run.setdefault(Run(task.dag_id, task.run_id), []).append(task)
    return of_run


def _path(run: Run, task_id: str, map_index: int) -> str:
    task = f"/dags/{quote(run.dag_id, safe='')}/runs/{quote(run.run_id, safe='')}/tasks/{quote(task_id, safe='')}"
    return f"{task}/mapped/{map_index}" if map_index >= 0 else task
