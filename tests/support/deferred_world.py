"""A DAG that waits for records of a real topic in the triggerer; Airflow's own code, and no Spark.

Here Airflow's triggerer is played: its triggers run in this process, and each test says what becomes of the events.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_epochs import DeltaSink, KafkaSource
from airflow_epochs.pipeline import EpochPipeline
from tests.support.airflow_harness import Harness
from tests.support.kafka_staging import TopicSpark
from tests.support.topic_world import TopicWorld

_numbers = itertools.count()


class SparkOfTopics:
    """``spark`` of a pipeline: reads topics without Spark."""

    def runner(self, env: Any) -> TopicSpark:
        return TopicSpark(env.reached)


class Deferred:
    """The pipeline ``orders`` of a ``TopicWorld``, as a DAG of Airflow. ``options``: those of the source."""

    def __init__(self, world: TopicWorld, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.world = world
        world.ledger_root.mkdir(exist_ok=True)
        self.connect = monkeypatch.setenv
        self.set_broker(world.broker.bootstrap)
        self._connection("epochs_default", "epochs", ledger_root=str(world.ledger_root))
        (world.folder / "disk.py").write_text("def keep_all(batch, epoch): ...\n")
        self.source = KafkaSource([world.topic()], conn_id="kafka", **{"min_records": 3, "max_wait": 3600, **options})
        self.harness = Harness(self._dag(f"deferred_{next(_numbers)}"))

    def set_broker(self, bootstrap: str, **extra: Any) -> None:
        """Where the connection ``kafka`` leads."""
        self._connection("kafka", "kafka", **{"bootstrap.servers": bootstrap, **extra})

    def _connection(self, conn_id: str, kind: str, **extra: Any) -> None:
        self.connect(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": kind, "extra": extra}))

    def _dag(self, dag_id: str) -> DAG:
        with DAG(dag_id, schedule=None, max_active_runs=1) as dag:
            EpochPipeline(
                "orders",
                source=self.source,
                transform=f"{self.world.folder / 'disk.py'}:keep_all",
                sinks=[DeltaSink("lake", str(self.world.folder / "lake"))],
                spark=SparkOfTopics(),  # type: ignore[arg-type]  # the double has the runner's methods itself
                wait_for_others=0,
                deferrable=True,
                operator_args={"retries": 0},
            )
        return dag

    def run(self, run_id: str, triggerer: Callable[[], object]) -> str:
        """The run's state and that of ``open``. ``triggerer`` is called whenever the run waits."""
        outcome = self.harness.run(run_id, triggerer=triggerer)
        return f"{outcome.state}, open {outcome.tasks['orders.open']}"

    def waiting(self) -> int:
        """The id of the trigger that ``open`` waits for."""
        task = deferred(self.harness.dag.dag_id)
        assert task and task.task_id == "orders.open"
        return int(task.trigger_id)

    def waits(self) -> bool:
        """Whether ``open`` is still deferred."""
        return deferred(self.harness.dag.dag_id) is not None

    def time_out(self) -> None:
        """As the scheduler does when nothing has woken a deferred task."""
        time_out(self.harness.dag.dag_id)


# -- Airflow's part, played -----------------------------------------------------------------------------------------


def deferred(dag_id: str) -> Any:
    """The task of the DAG that is deferred now; None if there is none."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(TaskInstance).filter_by(dag_id=dag_id, state="deferred").one_or_none()
        session.expunge_all()
        return found


def trigger_of(trigger_id: int) -> Any:
    """A trigger that is in the database."""
    from airflow._shared.module_loading import import_string
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session

    with create_session() as session:
        row = session.get(Trigger, trigger_id)
        assert row
        return import_string(row.classpath)(**row.kwargs)


def event_of(trigger_id: int) -> Any:
    """What a trigger that is in the database fires first; as the triggerer would, in an event loop of its own."""
    trigger = trigger_of(trigger_id)

    async def first() -> Any:
        return await anext(trigger.run())

    return asyncio.run(first())


def submit(trigger_id: int, event: Any, times: int = 1) -> None:
    """As the triggerer stores an event; also the same one again."""
    from airflow.models.trigger import Trigger

    for _ in range(times):
        Trigger.submit_event(trigger_id, event)


def time_out(dag_id: str) -> None:
    """As the scheduler does when a deferred task has waited for longer than it wanted to."""
    from datetime import timedelta

    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import timezone
    from airflow.utils.session import create_session

    with create_session() as session:
        task = session.query(TaskInstance).filter_by(dag_id=dag_id, state="deferred").one()
        assert task.trigger_timeout
        task.trigger_timeout = timezone.utcnow() - timedelta(seconds=1)
    SchedulerJobRunner(Job()).check_trigger_timeouts()


def fail(trigger_id: int) -> None:
    """As the triggerer does when a trigger has raised an error."""
    from airflow.models.trigger import Trigger

    Trigger.submit_failure(trigger_id, ValueError("the triggerer cannot import it"))
