"""Stage jobs that a real YARN runs in cluster mode, by real spark-submits: they outlive their task."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_epochs.config import Transform
from airflow_epochs.contracts import Connection, Following, RunsOn
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import NotApplied
from airflow_epochs.model import Run
from airflow_epochs.spark.runners import SparkSubmit
from airflow_epochs.spark.yarn import ResourceManager, tag_of
from airflow_epochs.triggers.application import ENDED, ApplicationTrigger
from stack.broker import Broker
from stack.jars import Jars, pyspark_home
from stack.yarn import YarnCluster
from tests.support.environment import connected
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TopicWorld

pytestmark = [pytest.mark.jvm, pytest.mark.long, pytest.mark.timeout(300)]

KEEP_ALL = """
from pyspark.sql import functions as F

def keep_all(batch, epoch):
    return batch.select(F.get_json_object(F.col("value").cast("string"), "$.payload").alias("payload"))
"""
RUN = Run("dag", "run 1")


@pytest.fixture(autouse=True)
def _spark_that_yarn_can_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers get the ``pyspark.zip`` of a whole SPARK_HOME."""
    monkeypatch.setenv("SPARK_HOME", str(pyspark_home()))


@pytest.fixture(scope="module")
def yarn(servers: Path, jars: Jars) -> Iterator[YarnCluster]:
    with YarnCluster(servers / "yarn", jars) as cluster:
        yield cluster


@dataclass(frozen=True)
class OnYarn:
    """A pipeline of one topic and one table, whose stage jobs run on YARN."""

    world: TopicWorld
    yarn: YarnCluster
    conf: dict[str, str]

    def task(self, *, elsewhere: bool = False, awaited: str | None = None) -> Coordinator:
        """A new task process. ``elsewhere`` and ``awaited``: as in ``Following``."""
        task, spark_connection = self.world.task().task, Connection(conn_id="spark", conn_type="spark", host="yarn")
        env = connected(self.world.kafka, spark_connection)
        work = f"file://{self.world.folder}/work"
        spark = SparkSubmit("spark", conf=self.conf, deploy_mode="cluster", work_url=work).runner(env)
        spark.follow(Following(elsewhere=elsewhere, awaited=awaited))
        code = Transform(path=str(self.world.folder / "keep.py"), function="keep_all")
        env.spark = spark
        return Coordinator(replace(task, pipeline=replace(task.pipeline, transform=code), env=env))

    def submitted(self, awaited: str | None = None) -> RunsOn:
        """What the stage task says that waits elsewhere."""
        with pytest.raises(RunsOn) as gone:
            self.task(elsewhere=True, awaited=awaited).stage(RUN)
        return gone.value

    def completed(self, coordinator: Coordinator) -> None:
        """The run to its end, from ``stage`` on."""
        coordinator.vote(RUN, coordinator.stage(RUN).stage)
        coordinator.commit(RUN, "lake")
        coordinator.complete(RUN)

    def states(self) -> list[str]:
        """Of all applications that this pipeline has submitted, oldest first."""
        tags = {tag_of(each.session["session_id"]) for each in self.world.ledger.tries(1)}
        return [app["finalStatus"] for app in self.yarn.applications() if tags & set(app["applicationTags"].split(","))]


@pytest.fixture
def on_yarn(yarn: YarnCluster, jars: Jars, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OnYarn:
    """The pipeline, with three records in its topic, and its first epoch opened."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "yarn"}))
    (tmp_path / "keep.py").write_text(KEEP_ALL)
    world = TopicWorld(folder=tmp_path, broker=broker, db=new_sqlite(tmp_path), id=tmp_path.name[-40:])
    world.create_topic()
    world.produce("abc")
    found = OnYarn(world, yarn, {**yarn.submit_conf(jars), "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable})
    found.task().open(RUN)
    return found


async def why(trigger: ApplicationTrigger) -> str:
    async for event in trigger.run():
        return str(event.payload["why"])
    raise AssertionError("the trigger ended without an event")


def test_tasks_that_wait_elsewhere_submit_once_however_often_they_are_killed(on_yarn: OnYarn) -> None:
    first = on_yarn.submitted()
    again = on_yarn.submitted()  # of a task whose worker was killed before it could defer
    assert (again.job, again.addresses) == (first.job, (on_yarn.yarn.address,))
    assert asyncio.run(why(ApplicationTrigger(first.addresses, first.job))) == ENDED
    on_yarn.completed(on_yarn.task(elsewhere=True, awaited=first.job))
    assert on_yarn.states() == ["SUCCEEDED"]
    assert on_yarn.world.shown("lake") == "abc"
    assert list((on_yarn.world.folder / "work").iterdir()) == []


def test_an_application_that_a_person_ends_fails_its_task_and_a_cleared_one_submits_anew(on_yarn: OnYarn) -> None:
    first = on_yarn.submitted()
    ResourceManager(first.addresses).end_with_tag(first.job)
    assert asyncio.run(why(ApplicationTrigger(first.addresses, first.job))) == ENDED
    with pytest.raises(NotApplied, match="KILLED") as failed:
        on_yarn.task(elsewhere=True, awaited=first.job).stage(RUN)
    assert "clear the failed task: it submits a new application" in failed.value.remedy
    on_yarn.completed(on_yarn.task())
    assert on_yarn.states() == ["KILLED", "SUCCEEDED"]
    assert on_yarn.world.shown("lake") == "abc"
