"""Runs, clears and reruns DAG runs inside this process, through Airflow's own scheduling and Execution API code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from typing import Any

from tests.support import airflow_home


@cache
def initialised() -> None:
    """The session's metadata database has its tables."""
    from airflow.utils.db import initdb

    initdb()


@dataclass
class Outcome:
    """A run's state, its tasks' states by task id, and their XComs."""

    state: str
    tasks: dict[str, str | None]
    xcoms: dict[str, Any] = field(default_factory=dict)


class Harness:
    """One DAG, its runs driven to their end on demand."""

    def __init__(self, dag: Any) -> None:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
        from airflow.models.dagbundle import DagBundleModel
        from airflow.serialization.serialized_objects import DagSerialization
        from airflow.utils.session import create_session

        initialised()
        self.dag = dag
        with create_session() as session:
            session.merge(DagBundleModel(name="tests"))
        bag = DagBag(dag_folder=str(airflow_home.DAGS))
        bag.bag_dag(dag)
        sync_bag_to_db(bag, bundle_name="tests", bundle_version="1")
        self._stored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))

    def run(
        self,
        run_id: str,
        conf: Mapping[str, Any] | None = None,
        interval: Any = None,
        triggerer: Callable[[], object] | None = None,
    ) -> Outcome:
        """Create a run and drive it to its end.

        ``interval``: its data interval, which begins at its logical date. ``triggerer``: as in ``drive``.
        """
        from airflow.sdk.timezone import utcnow
        from airflow.utils.state import DagRunState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        now = utcnow()
        self._stored.create_dagrun(
            run_id=run_id,
            logical_date=interval[0] if interval else None,
            data_interval=interval,
            run_after=now,
            conf=dict(conf or {}),
            run_type=DagRunType.MANUAL,
            state=DagRunState.RUNNING,
            triggered_by=DagRunTriggeredByType.TEST,
            start_date=now,
        )
        return self.drive(run_id, triggerer)

    def backfill(self, first: datetime, last: datetime, *, again: bool = False, backwards: bool = False) -> list[str]:
        """What ``airflow backfill create`` does; the ids of its runs, in their order, for ``drive``.

        ``again``: with ``--reprocess-behavior completed``. ``backwards``: with ``--run-backwards``.
        """
        from airflow.models.backfill import BackfillDagRun, ReprocessBehavior, _create_backfill
        from airflow.utils.session import create_session

        made = _create_backfill(
            dag_id=self.dag.dag_id,
            from_date=first,
            to_date=last,
            max_active_runs=1,
            reverse=backwards,
            dag_run_conf=None,
            triggering_user_name="me",
            reprocess_behavior=ReprocessBehavior.COMPLETED if again else ReprocessBehavior.NONE,
        )
        with create_session() as session:
            rows = session.query(BackfillDagRun).filter_by(backfill_id=made.id).order_by(BackfillDagRun.sort_ordinal)
            found = [row.dag_run.run_id for row in rows if row.dag_run]
        self.ended_backfills()
        return found

    def ended_backfills(self) -> None:
        """What the scheduler does when all runs of the DAG's backfills have ended."""
        from airflow.models.backfill import Backfill
        from airflow.utils.session import create_session

        with create_session() as session:
            open_ones = session.query(Backfill).filter_by(dag_id=self.dag.dag_id, completed_at=None)
            open_ones.update({"completed_at": datetime.now(timezone.utc)})

    def clear(self, run_id: str, *task_ids: str, only_failed: bool = False) -> Outcome:
        """Clear tasks (all, if none is named) as a user would, and drive the run to its end again."""
        self._stored.clear(run_id=run_id, only_failed=only_failed, task_ids=list(task_ids) or None)
        return self.drive(run_id)

    def forget(self) -> None:
        """Delete every trace of the DAG's runs from the metadata database."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session

        with create_session() as session:
            for run in session.query(DagRun).filter_by(dag_id=self.dag.dag_id):
                session.delete(run)

    def put_back(self, run_id: str, states: Mapping[str, str], others: str) -> None:
        """Make a run red as Airflow does after a backup from its midst, whose running task has no process any more.

        ``states``: of tasks, by the last part of their ids. ``others``: the state of all other tasks.
        """
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            session.query(DagRun).filter_by(dag_id=self.dag.dag_id, run_id=run_id).one().state = "failed"
            for task in session.query(TaskInstance).filter_by(dag_id=self.dag.dag_id, run_id=run_id):
                task.state = states.get(task.task_id.rpartition(".")[2], others)
                if task.state != "success":
                    session.query(XComModel).filter_by(
                        dag_id=self.dag.dag_id, run_id=run_id, task_id=task.task_id
                    ).delete()

    def asset_events(self, run_id: str) -> list[dict[str, Any]]:
        """The ``extra`` of every asset event of a run."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session

        with create_session() as session:
            rows = session.query(AssetEvent).filter_by(source_dag_id=self.dag.dag_id, source_run_id=run_id)
            return [dict(row.extra) for row in rows]

    def note(self, run_id: str) -> str | None:
        """The note of a run, as Airflow's grid shows it."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session

        with create_session() as session:
            note = session.query(DagRun).filter_by(dag_id=self.dag.dag_id, run_id=run_id).one().note
            return None if note is None else str(note)

    def write_note(self, run_id: str, note: str) -> None:
        """What Airflow's UI does when the user ``ada`` writes a note."""
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from airflow.api_fastapi.core_api.services.public.dag_run import patch_dag_run_note
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session

        with create_session() as session:
            run = session.query(DagRun).filter_by(dag_id=self.dag.dag_id, run_id=run_id).one()
            patch_dag_run_note(dag_run=run, note=note, user=SimpleAuthManagerUser(username="ada", role="ADMIN"))

    def set_xcom(self, run_id: str, task_id: str, value: object) -> None:
        """Put something else in place of what a task has returned."""
        from airflow.models.xcom import XComModel

        XComModel.set(key="return_value", value=value, dag_id=self.dag.dag_id, task_id=task_id, run_id=run_id)

    def partition_keys(self, run_id: str) -> list[str | None]:
        """The partition key of every asset event of a run."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session

        with create_session() as session:
            rows = session.query(AssetEvent).filter_by(source_dag_id=self.dag.dag_id, source_run_id=run_id)
            return [row.partition_key for row in rows]

    def drive(self, run_id: str, triggerer: Callable[[], object] | None = None, rounds_max: int = 200) -> Outcome:
        """Drive a run to its end.

        ``triggerer`` is called when all that is left are deferred tasks; without it, triggers run in this process.
        """
        from airflow import settings
        from airflow.models.dagrun import DagRun
        from airflow.sdk import timezone
        from airflow.utils.state import DagRunState

        session = settings.get_session()()
        run = session.query(DagRun).filter_by(dag_id=self.dag.dag_id, run_id=run_id).one()
        run.dag = self._stored
        if run.state == DagRunState.QUEUED:
            run.state, run.start_date = DagRunState.RUNNING, timezone.utcnow()
            session.commit()
        for _ in range(rounds_max):
            session.expire_all()
            run.dag = self._stored
            ready, _callback = run.update_state(session=session)
            if run.state != DagRunState.RUNNING:
                return self._outcome(run, session)
            tasks = run.get_task_instances(session=session)
            woken = [ti for ti in tasks if ti.state == "scheduled" and ti.next_method]
            waits = any(ti.state == "deferred" for ti in tasks)
            for ti in ready:
                ti.try_number += 1
            self._run_tasks([*ready, *woken], session, inline=triggerer is None)
            if triggerer and waits:
                session.commit()
                triggerer()
        raise AssertionError(f"{run_id} did not end in {rounds_max} rounds: {self._outcome(run, session)}")

    def _run_tasks(self, ready: list[Any], session: Any, *, inline: bool) -> None:
        from airflow.sdk import timezone
        from airflow.sdk.definitions.dag import _run_task
        from airflow.utils.state import TaskInstanceState

        for ti in ready:
            ti.state, ti.scheduled_dttm = TaskInstanceState.SCHEDULED, timezone.utcnow()
        session.commit()
        for ti in ready:
            with contextlib.suppress(Exception):  # the outcome is in the task's state
                _run_task(ti=ti, task=self.dag.task_dict[ti.task_id], run_triggerer=inline)

    def _outcome(self, run: Any, session: Any) -> Outcome:
        from airflow.models.xcom import XComModel

        tasks = {ti.task_id: str(ti.state) if ti.state else None for ti in run.get_task_instances(session=session)}
        rows = session.query(XComModel).filter_by(dag_id=self.dag.dag_id, run_id=run.run_id, key="return_value")
        xcoms = {row.task_id: XComModel.deserialize_value(row) for row in rows}
        session.commit()
        return Outcome(str(run.state), tasks, xcoms)
