"""Two pipelines, chained through a topic that is the sink of one and the source of the other, crash at every phase.

Spark is left out: what it would stage is read here from the planned offsets, as it would read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from airflow_epochs import KafkaSink, KafkaSource
from airflow_epochs.contracts import Sink, Source
from stack.broker import Broker
from tests.support.chained import Chain
from tests.support.environment import Action, Environment
from tests.support.faults_disk import PARTITIONS, DiskSpark
from tests.support.kafka_sink_world import create, world_at
from tests.support.kafka_staging import TopicSpark
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


class TopicChain(Chain):
    """With a topic in between."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        super().__init__(folder)
        self.bootstrap = broker.bootstrap
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.topic = create(self.admin, f"chain-{self.name}", len(PARTITIONS))

    @property
    def sink(self) -> Sink:
        return KafkaSink("events", self.topic, staging=str(self.folder / "staging"))

    @property
    def source(self) -> Source:
        return KafkaSource([self.topic], max_wait=0, starting="earliest")

    def environment(self, at: dict[str, Action]) -> Environment:
        return Environment(world_at(self.bootstrap).connections, at)

    def spark(self, reached: Callable[[str], None]) -> DiskSpark:
        return TopicSpark(reached)

    def down(self, at: Mapping[str, Action] | None = None) -> list[str]:
        wait_until(lambda: self._ends(IsolationLevel.READ_COMMITTED) == self._ends(IsolationLevel.READ_UNCOMMITTED))
        return super().down(at)

    def _ends(self, isolation: IsolationLevel) -> list[int]:
        latest = {TopicPartition(self.topic, number): OffsetSpec.latest() for number in PARTITIONS}
        return [
            answer.result().offset for answer in self.admin.list_offsets(latest, isolation_level=isolation).values()
        ]


@pytest.mark.long
def test_a_record_is_once_at_the_far_end_of_two_pipelines_wherever_either_crashes(
    tmp_path: Path, broker: Broker
) -> None:
    chain = TopicChain(tmp_path, broker)
    phases: dict[str, list[str]] = {}
    for _ in range(2):  # the first epoch has phases that do not come again
        chain.input.produce(4)
        phases = {"up": chain.up(), "down": chain.down()}
    assert {"kafka.init", "kafka.commit.before", "kafka.commit.after"} < {*phases["up"]}
    assert {"delta.commit.after", "complete.put"} < {*phases["down"]}
    chain.crash_everywhere(phases, "kafka.")
