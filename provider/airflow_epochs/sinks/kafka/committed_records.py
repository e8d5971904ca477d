"""Reads the committed records of one partition, up to its high watermark.

Consumers of committed records stop at the last stable offset, so an open transaction hides what was committed behind
it. This reader waits for an open transaction to end, for at most the connection's timeout.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied
from airflow_epochs.kafka.open_transactions import OpenTransaction
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.hanging import elsewhere, how_to_end

if TYPE_CHECKING:
    from confluent_kafka import Message

FIRST_LOOK = 100
"""How many offsets before the end are read first in the search for the newest record."""
FURTHER = 50

Keyed = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, kw_only=True)
class PartitionLog:
    """One partition.

    ``owner``: the transactional id whose transactions belong into it. Without it, no error tells to end a transaction.
    ``rows``: the topic that these transactions are in as well.

    Raises:
        NotApplied: By every method: a transaction stayed open for too long, or the brokers do not answer.
        Refused: By every method: the brokers refused.
    """

    cluster: Cluster
    topic: str
    partition: int
    owner: str | None = None
    rows: str | None = None

    def newest(self, key: bytes) -> bytes | None:
        """The value of the newest record with this key. Reads from the end backwards, in growing steps.

        An empty value means a tombstone; None means that there is no such record.
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
        """Key and value of every record, from the beginning. A caller that stops early waits for nothing further."""
        return ((message.key(), message.value()) for message in self.messages())

    def messages(self) -> Iterator[Message]:
        """Every record, in the order of ``records``."""
        return self._read(*self.bounds())

    def between(self, start: int, end: int) -> Iterator[Message]:
        """Every record with an offset in ``[start, end)``, as far as they are still there."""
        return self._read(start, end)

    def bounds(self) -> tuple[int, int]:
        """The offsets ``[beginning, end)`` that exist now. ``beginning`` grows when records are deleted."""
        beginning = self.cluster.beginning(self.topic, self.partition)
        return beginning, self.cluster.ends(self.topic, range(self.partition, self.partition + 1))[self.partition]

    def _read(self, start: int, end: int) -> Iterator[Message]:
        """Every committed record with an offset in ``[start, end)``."""
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
                deadline = self._deadline()  # the time counts from the last record
            else:
                return

    def _deadline(self) -> float:
        return time.monotonic() + self.cluster.access.timeout_s

    def _past(self, error: Any, offset: int, position: int) -> int:
        """The position after an event without a record: the end of what can be read now, or a passing failure."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:
            return max(position, offset)
        # The client looks for a group's coordinator, which this consumer never needs.
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED or error.retriable():
            return position
        raise self.cluster.failure(f"read topic {self.topic}", error)

    def _require_time(self, deadline: float, position: int, end: int) -> None:
        if position < end and time.monotonic() > deadline:
            found = self.cluster.open_transactions(self.topic, [self.partition], self.owner)
            by = next((of[0] for of in found.values()), None)
            raise self._held_back(position, end, by)

    def _held_back(self, position: int, end: int, by: OpenTransaction | None) -> NotApplied:
        why = f"{by} is still open there" if by else "a transaction is still open there, or the brokers do not answer"
        return NotApplied(
            f"The task could read {self.topic}[{self.partition}] up to offset {position}, but not to its end at {end}: "
            f"{why}.",
            code=codes.TRANSACTION_OPEN,
            remedy=self._how_to_end(by) if by and by.hangs else None,
        )

    def _how_to_end(self, hanging: OpenTransaction) -> str:
        here = ((self.topic, self.partition), hanging)
        there = elsewhere(self.cluster, self.rows, hanging, self.owner) if self.rows else []
        untold = self.rows if there is None else None
        return how_to_end([here, *(there or [])], self.cluster.access.servers, untold)
