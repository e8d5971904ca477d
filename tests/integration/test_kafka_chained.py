"""Two pipelines, chained through a topic that is the sink of one and the source of the other, crash at every phase.

Spark is left out: what it would stage is read here from the planned offsets, as it would read them.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from airflow_epochs import DeltaSink, KafkaSink, KafkaSource
from airflow_epochs.contracts import Sink, Source
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.testing import Crash
from stack.broker import Broker
from tests.support.environment import Action, Environment
from tests.support.faults_disk import PARTITIONS, FileSource
from tests.support.faults_world import airflow_run, crash, rows_in
from tests.support.kafka_sink_world import create, world_at
from tests.support.kafka_staging import TopicSpark
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


class Chain:
    """Records in a file → a topic → a table."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder, self.bootstrap, self.name = folder, broker.bootstrap, uuid.uuid4().hex[:8]
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.topic = create(self.admin, f"chain-{self.name}", len(PARTITIONS))
        self.input = FileSource(folder=str(folder / "input"))
        self._runs = 0

    def up(self, at: Mapping[str, Action] | None = None) -> list[str]:
        sink = KafkaSink("events", self.topic, staging=str(self.folder / "staging"))
        return self._run(f"up-{self.name}", self.input, sink, at)

    def down(self, at: Mapping[str, Action] | None = None) -> list[str]:
        wait_until(lambda: self._ends(IsolationLevel.READ_COMMITTED) == self._ends(IsolationLevel.READ_UNCOMMITTED))
        source = KafkaSource([self.topic], max_wait=0, starting="earliest")
        return self._run(f"down-{self.name}", source, DeltaSink("rows", str(self.folder / "rows")), at)

    def _run(self, name: str, source: Source, sink: Sink, at: Mapping[str, Action] | None) -> list[str]:
        """An Airflow run of one of the two; the phases that it reached. It fails only where it is told to crash."""
        self._runs += 1
        env = Environment(world_at(self.bootstrap).connections, dict(at or {}))
        env.spark = TopicSpark(env.reached)
        pipeline = Pipeline(
            wait_for_others=0,
            name=name,
            dag_id="dag",
            source=source,
            sinks=(sink,),
            transform=Transform(path="disk.py", function="keep_all"),
        )
        coordinator = Coordinator(
            TaskTry(pipeline=pipeline, ledger=Ledger(LocalStore(self.folder / "ledger"), name), env=env)
        )
        if at:
            with pytest.raises(Crash):
                airflow_run(coordinator, Run("dag", f"run {self._runs}"))
        else:
            assert airflow_run(coordinator, Run("dag", f"run {self._runs}")) is None
        return list(dict.fromkeys(env.phases))

    def _ends(self, isolation: IsolationLevel) -> list[int]:
        latest = {TopicPartition(self.topic, number): OffsetSpec.latest() for number in PARTITIONS}
        return [
            answer.result().offset for answer in self.admin.list_offsets(latest, isolation_level=isolation).values()
        ]

    def require_once(self) -> None:
        """The table at the end has every record of the file once."""
        found = Counter(text for _, _, text in rows_in(self.folder / "rows", self.input.name))
        assert found == Counter(text for _, _, text in self.input.all_rows())


def test_a_record_is_once_at_the_far_end_of_two_pipelines_wherever_either_crashes(
    tmp_path: Path, broker: Broker
) -> None:
    chain = Chain(tmp_path, broker)
    phases: dict[str, list[str]] = {}
    for _ in range(2):  # the first epoch has phases that do not come again
        chain.input.produce(4)
        phases = {"up": chain.up(), "down": chain.down()}
    assert {"kafka.init", "kafka.commit.before", "kafka.commit.after"} < {*phases["up"]}
    assert {"delta.commit.after", "complete.put"} < {*phases["down"]}
    for phase in phases["up"]:
        chain.input.produce(3)
        chain.up({phase: crash})
        if phase.startswith("kafka."):
            chain.down()  # takes whole epochs of the other, or nothing
        chain.up()
    chain.down()
    chain.require_once()
    for phase in phases["down"]:
        chain.input.produce(2)
        chain.up()
        chain.down({phase: crash})
        chain.down()
    chain.require_once()
