"""The Kafka sink passes the suite that is shipped for sinks of other people."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from airflow_epochs import KafkaSink
from airflow_epochs.model import JsonDict, StagedClaim
from airflow_epochs.testing.conformance import SinkConformance, Subject
from delta_world import World, stage_with_deltalake
from kafka_sink_world import create, seen_by_confluent, values, world_at
from stack.broker import Broker

pytestmark = pytest.mark.jvm

PARTITIONS = 2


@dataclass
class OnKafka:
    """A topic, and a marker topic of its own: every test calls its pipeline by the same name."""

    bootstrap: str
    topic: str
    folder: Path

    @property
    def env(self) -> World:
        return world_at(self.bootstrap)

    def sink(self) -> KafkaSink:
        return KafkaSink(
            "orders", self.topic, staging=str(self.folder / "staging"), marker_topic=f"{self.topic}-markers"
        )

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        return stage_with_deltalake(plan, pa.table({"id": pa.array(ids, pa.int64())}))

    def visible(self) -> list[int]:
        seen = [values(seen_by_confluent(self.bootstrap, self.topic, number)) for number in range(PARTITIONS)]
        return [json.loads(value or "")["id"] for each in seen for value in each]


class TestKafkaSink(SinkConformance):
    @pytest.fixture
    def subject(self, broker: Broker, tmp_path: Path) -> Subject:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topic = create(admin, f"conformance-{uuid.uuid4().hex[:8]}", PARTITIONS)
        create(admin, f"{topic}-markers", cleanup_policy="compact")
        return OnKafka(broker.bootstrap, topic, tmp_path)
