"""Kafka for tests: one connection, topics of one's own, and waiting for what brokers do in their own time."""

from __future__ import annotations

from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from airflow_epochs.contracts import Connection
from tests.support.environment import Environment
from tests.support.waiting import wait_until

SUDDEN = {
    "controlled.shutdown.enable": "false",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}
"""Settings of a broker that a test stops without a word to the controller, which lets nobody of its number in before
it has missed it for the session timeout. With Kafka's nine seconds, that is most of the time of a restart."""


class KafkaEnv(Environment):
    """Every connection leads to the same brokers."""

    def __init__(self, **extra: object) -> None:
        super().__init__()
        self.extra = extra

    def connection(self, conn_id: str) -> Connection:
        return Connection(conn_id=conn_id, conn_type="kafka", extra=self.extra)


class Topic:
    """One topic of its own for a test."""

    def __init__(self, name: str, admin: KafkaAdminClient, bootstrap: str) -> None:
        self.name, self.admin, self.bootstrap = name, admin, bootstrap

    def create(self, partitions: int = 1) -> Topic:
        options = {"num_partitions": partitions, "replication_factor": 1}
        self.admin.create_topics({self.name: options}, wait_for_metadata=True)
        return self

    def delete(self) -> None:
        self.admin.delete_topics([self.name])
        wait_until(lambda: self.admin.describe_topics([self.name])[0]["error_code"] != 0)

    def add_partitions(self, count: int) -> None:
        self.admin.create_partitions({self.name: count})
        wait_until(lambda: len(self.admin.describe_topics([self.name])[0]["partitions"]) == count)

    def delete_before(self, partition: int, offset: int) -> None:
        self.admin.delete_records({TopicPartition(self.name, partition): offset})

    def produce(self, *counts: int, at_ms: int = 0, size: int = 0) -> None:
        """Produce so many records into partitions 0, 1, …, of ``size`` bytes at least."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        for partition, count in enumerate(counts):
            for i in range(count):
                producer.produce(self.name, f"{i:0{size}}".encode(), partition=partition, timestamp=at_ms)
        assert producer.flush(20) == 0

    def begin_transaction(self, count: int, at_ms: int = 0) -> Producer:
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.name, "log_level": 0})
        producer.init_transactions(20)
        producer.begin_transaction()
        for i in range(count):
            producer.produce(self.name, f"{i}".encode(), partition=0, timestamp=at_ms)
        assert producer.flush(20) == 0
        return producer
