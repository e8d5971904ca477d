"""An operator's way to repair lost markers: count the epochs in the topic, then put the sink's marker back.

repair = MarkerRepair({"bootstrap.servers": "kafka-1:9092"}, "orders", "events", "orders-enriched")
repair.epochs()      # {16: 4100, 17: 4712}: the rows of each epoch that readers of committed records see
repair.put("orders/17/1/6f1c…")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Refused
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.model import TransactionId
from airflow_epochs.sinks.kafka import marker_topic as kafka_marker_topic
from airflow_epochs.sinks.kafka import producer as kafka_producer
from airflow_epochs.sinks.kafka.checks import require_topic
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.committed_records import PartitionLog
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers
from airflow_epochs.sinks.kafka.rows import HEADER

if TYPE_CHECKING:
    from confluent_kafka import Producer

TIMEOUT_S = 60


@dataclass(frozen=True)
class MarkerRepair:
    """The marker of one sink.

    Attributes:
        settings: How to reach the brokers, in the form of the Airflow connection's extra.
        topic: The topic that the sink sends rows to.
    """

    settings: Mapping[str, Any]
    pipeline: str
    sink: str
    topic: str
    marker_topic: str = "airflow-epochs-markers"

    def epochs(self) -> dict[int, int]:
        """How many rows of each epoch the topic holds, oldest epoch first. Reads the whole topic."""
        topic = require_topic(self._cluster, self.topic)
        found = Counter(epoch for partition in range(topic.partitions) for epoch in self._epochs_in(partition))
        return dict(sorted(found.items()))

    def marker(self) -> MarkerRecord | None:
        """The sink's marker now; None if it has none."""
        return self._markers.newest()

    def put(self, txn_id: str | None) -> MarkerRecord:
        """Put a marker: ``txn_id`` is the sink's newest epoch; with None, the topic has no epoch of the sink.

        Creates the marker topic if it is missing. Ends the sink's open transaction, if there is one, and fences the
        process that has it, before it reads the topic.

        Raises:
            Refused: The topic has rows of a later epoch. Nothing was written.
            ValueError: ``txn_id`` is not a transaction id.
        """
        txn = TransactionId.parse(txn_id) if txn_id else None
        topic = require_topic(self._cluster, self.topic)
        marker_topic = self._ready_marker_topic(topic)
        producer = self._producer()  # take the id over first, so that nobody sends an epoch while the topic is read
        epochs = self.epochs()
        if late := [epoch for epoch in epochs if epoch > (txn.epoch if txn else 0)]:
            raise Refused(
                f"Topic {self.topic} has rows of epoch {late[-1]}, which is later than the marker "
                f"({txn_id or 'no epoch'}). With this marker, they would be sent twice. Nothing was written.",
                code=codes.MARKER_WOULD_DUPLICATE,
                remedy=f"Put the transaction of epoch {late[-1]} instead. `airflow epochs show {self.pipeline} "
                f"{late[-1]}` names it.",
                pipeline=self.pipeline,
                sink=self.sink,
            )
        record = self._record(txn, topic, marker_topic, epochs)
        self._markers.put(producer, record)
        return record

    def _ready_marker_topic(self, topic: TopicFacts) -> TopicFacts:
        """The marker topic, which has a partition for this sink; created as safe as ``topic`` if it is missing."""
        name = self.marker_topic
        found = self._cluster.topic(name) or kafka_marker_topic.create(self._cluster, name, topic)
        self._markers.assigned(in_ours=True)
        return found

    def _record(
        self, txn: TransactionId | None, topic: TopicFacts, marker_topic: TopicFacts, epochs: Mapping[int, int]
    ) -> MarkerRecord:
        _, end = self._markers.log.bounds()
        return MarkerRecord(
            txn_id=txn,
            topic=self.topic,
            rows=epochs.get(txn.epoch, 0) if txn else 0,
            files=0,
            size=0,
            place="",
            offsets={},
            at=datetime.now(timezone.utc).isoformat(),
            topic_id=topic.id,
            marker_topic_id=marker_topic.id,
            vouched_end=end,
        )

    def _producer(self) -> Producer:
        """A producer with the sink's transactional id: a process that still sends an epoch is fenced."""
        options = kafka_producer.producer_options(self._markers.assigned().transactional_id, TIMEOUT_S, {})
        return kafka_producer.transactional(self._cluster, options, self.marker_topic)

    # -- of what -------------------------------------------------------------------------------------------------

    def _epochs_in(self, partition: int) -> Iterator[int]:
        """The epoch of each row, as an iterator: there may be hundreds of millions of rows."""
        log = PartitionLog(cluster=self._cluster, topic=self.topic, partition=partition)
        prefix = f"{self._markers.key}/".encode()
        headers = (dict(message.headers() or ()).get(HEADER) or b"" for message in log.messages())
        return (int(header[len(prefix) :].split(b"/")[0]) for header in headers if header.startswith(prefix))

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(read_connection(Connection(conn_id="repair", conn_type="kafka", extra=dict(self.settings))))

    @cached_property
    def _markers(self) -> Markers:
        key = f"{self.pipeline}/{self.sink}"
        return Markers(cluster=self._cluster, topic=self.marker_topic, key=key, rows=self.topic)
