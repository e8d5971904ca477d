"""Committed records of one partition, up to its high watermark as of now.

Not to the last stable offset, which is where a reader of committed records stops: a transaction that is open there
would hide what was committed behind it. What is open is waited for, and not for long: a question has its time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_epochs.errors import NotApplied
from airflow_epochs.sinks.kafka.cluster import Cluster

if TYPE_CHECKING:
    from confluent_kafka import Message

FIRST_LOOK = 100
"""Offsets from the end that are read first to find what is newest."""
FURTHER = 50

Keyed = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, kw_only=True)
class PartitionLog:
    """One partition.

    All methods raise NotApplied: a transaction is open there for longer than the time for a question, or no answer;
    Refused: the brokers say no.
    """

    cluster: Cluster
    topic: str
    partition: int

    def newest(self, key: bytes) -> bytes | None:
        """The value of the newest record with that key, from the end backwards in steps that grow.

        Empty if that is a tombstone; None if there is no such record.
        """
        beginning, end = self.bounds()
        depth = FIRST_LOOK
        while beginning < end:
            start = max(beginning, end - depth)
            if values := [message.value() for message in self._read(start, end) if message.key() == key]:
                return values[-1] or b""
            end, depth = start, depth * FURTHER
        return None

    def records(self) -> Iterator[Keyed]:
        """Key and value of every record, from the beginning. Whoever stops early waits for nothing behind that."""
        return ((message.key(), message.value()) for message in self.messages())

    def messages(self) -> Iterator[Message]:
        """Every record, as ``records``."""
        return self._read(*self.bounds())

    def bounds(self) -> tuple[int, int]:
        """The offsets ``[beginning, end)`` that there are. A beginning that has moved on: records were deleted."""
        beginning = self.cluster.beginning(self.topic, self.partition)
        return beginning, self.cluster.ends(self.topic, range(self.partition, self.partition + 1))[self.partition]

    def _read(self, start: int, end: int) -> Iterator[Message]:
        """Every committed record in ``[start, end)``."""
        from confluent_kafka import TopicPartition

        consumer = self.cluster.consumer()
        try:
            consumer.assign([TopicPartition(self.topic, self.partition, start)])
            yield from self._polled(consumer, start, end)
        finally:
            consumer.close()

    def _polled(self, consumer: Any, position: int, end: int) -> Iterator[Message]:
        deadline = self._deadline()
        while position < end:
            message = consumer.poll(0.1)
            if message is None:
                self._require_time(deadline, position, end)
            elif error := message.error():
                position = self._past(error, message.offset(), position)
                self._require_time(deadline, position, end)
            elif message.offset() < end:
                position = message.offset() + 1
                yield message
                deadline = self._deadline()  # it goes on
            else:
                return

    def _deadline(self) -> float:
        return time.monotonic() + self.cluster.access.timeout_s

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
                f"Of {self.topic}[{self.partition}] only what is before offset {position} can be read, not all before "
                f"{end}: a transaction is still open there, or the brokers do not answer.",
                remedy="Try again: the brokers end a transaction that was left open after its transaction timeout.",
            )
