"""The epoch marker: a record in the transaction of the rows, the newest of its key in a compacted topic.

The key is ``<pipeline>/<sink>``. Its partition is a hash of it, modulo a constant: partitions that are added later
change nothing. Two sinks may share a partition. So a marker is read to the *high watermark*, waiting for every
transaction that is still open there: up to the last stable offset only, another sink's open transaction could hide a
marker, and its epoch would be sent twice. That wait is short, as markers are sent last, just before the commit.

Whoever is about to commit reads the marker only after ``init_transactions``, which ends every earlier transaction of
the sink: read before, it could still change.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from airflow_epochs.errors import Corrupt, NotApplied, Refused
from airflow_epochs.model import TransactionId
from airflow_epochs.sinks.kafka_cluster import Cluster, TopicFacts

FORMAT = 1
PARTITIONS = 16
"""Never to be changed: it says where a sink's markers are."""
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "86400000",  # old markers are compacted away once their segment is closed
    "min.cleanable.dirty.ratio": "0.1",
}
FIRST_LOOK = 100
"""Offsets from the end that are read first. A sink that is fed alone in its partition is found there."""
FURTHER = 50


def partition_of(key: str) -> int:
    """The marker topic's partition for a key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % PARTITIONS


@dataclass(frozen=True, kw_only=True)
class MarkerRecord:
    """What the marker says of the epoch that it came with; of which the receipt is made.

    Attributes:
        rows, files, size, place: What was staged and sent.
        offsets: Per partition of the topic, a range ``[start, end)`` in which the rows lie, with those that others
            sent at the same time; partitions where nothing was added are left out.
        at: When it was sent.
    """

    txn_id: str
    topic: str
    rows: int
    files: int
    size: int
    place: str
    offsets: dict[str, list[int]]
    at: str
    format: int = FORMAT

    @property
    def txn(self) -> TransactionId:
        return TransactionId.parse(self.txn_id)

    def encoded(self) -> bytes:
        value = {"epoch": self.txn.epoch, **asdict(self)}  # the epoch for people and other programs
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, value: bytes) -> MarkerRecord:
        """The inverse of ``encoded``; fields that this version does not know are ignored.

        Raises:
            ValueError: It is none, or of a newer format.
        """
        given: Any = json.loads(value)
        try:
            marker = cls(**{name: given[name] for name in cls.__dataclass_fields__})
            if marker.format > FORMAT:
                raise ValueError(f"its format is {marker.format}, this version knows {FORMAT}")
            TransactionId.parse(marker.txn_id)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it lacks {error}") from error
        return marker


@dataclass(frozen=True, kw_only=True)
class Markers:
    """The markers of one sink of one pipeline. ``key`` is ``<pipeline>/<sink>``."""

    cluster: Cluster
    topic: str
    key: str

    @property
    def partition(self) -> int:
        return partition_of(self.key)

    def newest(self) -> MarkerRecord | None:
        """The newest committed marker as of now; None if there is none, or no marker topic.

        Raises:
            NotApplied: A transaction is open there for longer than the time for a question, or no answer.
            Corrupt: What lies there is no marker.
            Refused: The brokers say no, or the topic is not one of markers.
        """
        facts = self.cluster.topic(self.topic)
        if facts is None:
            return None
        require_partitions(facts)
        end = self.cluster.ends(self.topic, range(self.partition, self.partition + 1))[self.partition]
        value = self._search(self.cluster.beginning(self.topic, self.partition), end)
        return self._decoded(value) if value else None

    def _search(self, beginning: int, end: int) -> bytes | None:
        """From the end backwards, in steps that grow: markers only ever get newer towards the end."""
        consumer, depth = self.cluster.consumer(), FIRST_LOOK
        try:
            while beginning < end:
                start = max(beginning, end - depth)
                values = [value for key, value in self._read(consumer, start, end) if key == self.key.encode()]
                if values:
                    return values[-1]
                end, depth = start, depth * FURTHER
        finally:
            consumer.close()
        return None

    def _read(self, consumer: Any, start: int, end: int) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Every committed record in ``[start, end)``."""
        from confluent_kafka import TopicPartition

        deadline = time.monotonic() + self.cluster.access.timeout_s
        consumer.assign([TopicPartition(self.topic, self.partition, start)])
        position = start
        while position < end:
            message = consumer.poll(0.1)
            if message is None:
                self._require_time(deadline, position, end)
            elif error := message.error():
                position = self._past(error, message.offset(), position)
                self._require_time(deadline, position, end)
            elif message.offset() < end:
                position = message.offset() + 1
                yield message.key(), message.value()
            else:
                return

    def _past(self, error: Any, offset: int, position: int) -> int:
        """The position after an event that is no record: the end of what can be read now, or a failure that passes."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:
            return max(position, offset)
        # The client looks for a group's coordinator that is never needed.
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED or error.retriable():
            return position
        raise self.cluster.failure(f"read topic {self.topic}", error)

    def _require_time(self, deadline: float, position: int, end: int) -> None:
        if position < end and time.monotonic() > deadline:
            raise NotApplied(
                f"Of the markers in {self.topic}[{self.partition}] only those before offset {position} can be read, "
                f"not all before {end}: a transaction is still open there, or the brokers do not answer.",
                remedy="Try again: the brokers end a transaction that was left open after its transaction timeout.",
            )

    def _decoded(self, value: bytes) -> MarkerRecord:
        try:
            return MarkerRecord.decoded(value)
        except ValueError as error:
            raise Corrupt(
                f"The newest record of key {self.key} in topic {self.topic} is no epoch marker: {error}.",
                remedy="Use the provider's version that wrote it, or one that is newer. If something else writes to "
                "this topic, stop it. See docs/kafka-sink.md, 'The marker topic'.",
            ) from error


def ready_topic(cluster: Cluster, topic: str) -> TopicFacts:
    """The marker topic, created if missing.

    Raises:
        Refused: It would not keep markers, or has too few partitions.
    """
    facts = cluster.topic(topic) or cluster.create(topic, PARTITIONS, SETTINGS)
    require_partitions(facts)
    if facts.settings["cleanup.policy"] != "compact":
        raise Refused(
            f"The marker topic {topic} has cleanup.policy={facts.settings['cleanup.policy']}: epoch markers would be "
            "lost.",
            remedy="Set cleanup.policy=compact on it, and look whether markers are missing already.",
        )
    return facts


def require_partitions(facts: TopicFacts) -> None:
    if facts.partitions < PARTITIONS:
        raise Refused(
            f"The marker topic {facts.name} has {facts.partitions} partitions, {PARTITIONS} are needed.",
            remedy=f"Add partitions to it up to {PARTITIONS}; or delete it if nothing has used it yet, and it is "
            "created right.",
        )
