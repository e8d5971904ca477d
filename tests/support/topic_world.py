"""A pipeline from topics of a real broker to sinks of any kind, without Spark: what is staged is read here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from kafka import KafkaAdminClient, TopicPartition

from airflow_epochs import DeltaSink, KafkaSink, KafkaSource, SqlSink
from airflow_epochs.ballot import VoteFunction
from airflow_epochs.contracts import Connection, Interval, Limits, Sink
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import CompleteRecord, OpenRecord, Run
from orders_demo.duck import duck
from stack.broker import Broker
from tests.support.environment import Action, connected
from tests.support.faults_disk import PARTITIONS
from tests.support.faults_world import airflow_run
from tests.support.kafka_sink_world import create, seen_by_confluent, set_config, values
from tests.support.kafka_staging import TopicSpark
from tests.support.sql_world import SqliteDb
from tests.support.waiting import wait_until

TABLE = 'CREATE TABLE rows (source text, partition bigint, "offset" bigint, payload text)'


@dataclass(frozen=True, kw_only=True)
class TopicWorld:
    """The pipeline as the DAG is today.

    ``topics``: short names of the topics that are read. ``tables``: sink -> table or topic, where its name is another.
    ``options``: more options of the source. ``interval``: the data interval of its runs.
    """

    folder: Path
    broker: Broker
    db: SqliteDb
    id: str
    name: str = "orders"
    sinks: tuple[str, ...] = ("lake",)
    topics: tuple[str, ...] = ("in",)
    tables: Mapping[str, str] = field(default_factory=dict)
    backfill: Mapping[str, int] = field(default_factory=dict)
    starting: Any = "earliest"
    vote: VoteFunction | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    interval: Interval | None = None
    on_failed_epoch: str | None = None
    in_dag: frozenset[str] | None = None

    # -- topics ----------------------------------------------------------------------------------------------------

    def topic(self, name: str = "in") -> str:
        return f"{name}-{self.id}"

    def create_topic(self, name: str = "in", partitions: int = len(PARTITIONS)) -> None:
        create(self._admin, self.topic(name), partitions)

    def set_option(self, option: str, value: str) -> None:
        """Of the topic ``in``."""
        set_config(self._admin, self.topic(), option, value)

    def delete_topic(self, name: str = "in") -> None:
        topic, admin = self.topic(name), self._admin
        admin.delete_topics([topic])[topic].result()
        wait_until(lambda: topic not in admin.list_topics(timeout=5).topics)

    def add_partition(self, name: str = "in") -> None:
        topic, count, admin = self.topic(name), len(PARTITIONS) + 1, self._admin
        admin.create_partitions([NewPartitions(topic, count)])[topic].result()
        wait_until(lambda: len(admin.list_topics(topic, timeout=5).topics[topic].partitions) == count)

    def delete_before(self, partition: int, offset: int, name: str = "in") -> None:
        """What retention does."""
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(self.topic(name), partition): offset})

    def produce(
        self, payloads: str, name: str = "in", partitions: Iterable[int] = PARTITIONS, at: datetime | None = None
    ) -> None:
        """A record for each letter, in turn to each partition. ``at``: the time that their producer gives them."""
        at_ms = int(at.timestamp() * 1000) if at else 0
        producer, turns = Producer({"bootstrap.servers": self.broker.bootstrap}), list(partitions)
        for number, payload in enumerate(payloads):
            value = json.dumps({"source": self.topic(name), "payload": payload})
            producer.produce(self.topic(name), value=value, partition=turns[number % len(turns)], timestamp=at_ms)
        assert producer.flush(20) == 0

    @property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    # -- the pipeline ----------------------------------------------------------------------------------------------

    @property
    def ledger_root(self) -> Path:
        return self.folder / "ledger"

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.ledger_root), self.name)

    def but(self, **changes: Any) -> TopicWorld:
        """The DAG with changes."""
        return replace(self, **changes)

    def task(self, at: Mapping[str, Action] | None = None) -> Coordinator:
        env = connected(self.kafka, self.db.connection(), at=at)
        env.spark = TopicSpark(env.reached)
        topics = [self.topic(name) for name in self.topics]
        source = KafkaSource(topics, conn_id="kafka", max_wait=0, starting=self.starting, **self.options)
        return Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    wait_for_others=0,
                    name=self.name,
                    dag_id="dag",
                    source=source,
                    sinks=tuple(map(self.sink, self.sinks)),
                    transform=Transform(path="disk.py", function="keep_all"),
                    backfill=self.backfill,
                    vote=self.vote,
                    on_failed_epoch=self.on_failed_epoch,
                    in_dag=self.in_dag,
                ),
                ledger=self.ledger,
                env=env,
                clock=self.clock,
                interval=lambda: self.interval,
            )
        )

    def run(self, number: int, at: Mapping[str, Action] | None = None) -> Exception | None:
        return airflow_run(self.task(at), Run("dag", f"run {number}"))

    def opened(self, number: int, **limits: Any) -> OpenRecord:
        opened = self.task().open(Run("dag", f"run {number}"), Limits(**limits))
        assert isinstance(opened, OpenRecord)
        return opened

    def completed(self, epoch: int) -> CompleteRecord:
        record = self.ledger.complete_record(epoch)
        assert record
        return record

    @property
    def kafka(self) -> Connection:
        return Connection(conn_id="kafka", conn_type="kafka", extra={"bootstrap.servers": self.broker.bootstrap})

    def table(self, sink: str) -> str:
        return self.tables.get(sink, sink)

    def sink(self, name: str) -> Sink:
        staging = str(self.folder / "staging")
        if name.startswith("lake"):
            return DeltaSink(name, str(self.folder / self.table(name)))
        if name.startswith("rows"):
            return SqlSink(name, "db", self.table(name), staging=staging)
        topic = self.topic(self.table(name))
        return KafkaSink(name, topic, staging=staging, conn_id="kafka", marker_topic=self.topic("markers"))

    # -- what strangers see ----------------------------------------------------------------------------------------

    def shown(self, sink: str) -> str:
        """The payloads, sorted."""
        readers: dict[str, Callable[[str], list[Any]]] = {"lake": self._in_the_lake, "rows": self._in_the_database}
        return "".join(sorted(readers.get(sink[:4], self._in_the_topic)(sink)))

    def _in_the_lake(self, sink: str) -> list[Any]:
        with duck() as db:
            found = db.execute("SELECT payload FROM delta_scan(?)", [str(self.folder / self.table(sink))])
            return [payload for (payload,) in found.fetchall()]

    def _in_the_database(self, sink: str) -> list[Any]:
        return [payload for (payload,) in self.db.run(f"SELECT payload FROM {self.table(sink)}")]

    def _in_the_topic(self, sink: str) -> list[Any]:
        topic = self.topic(self.table(sink))
        seen = [seen_by_confluent(self.broker.bootstrap, topic, partition) for partition in PARTITIONS]
        return [json.loads(text)["payload"] for each in seen for text in values(each) if text]


def stopped(world: TopicWorld, number: int) -> Corrupt:
    """The error with which a run stops."""
    error = world.run(number)
    assert isinstance(error, Corrupt), error
    error.pipeline = world.name  # as the operator does
    return error
