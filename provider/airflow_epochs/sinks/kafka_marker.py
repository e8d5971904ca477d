"""The epoch marker: a record in the transaction of the rows, the newest of its key in a compacted topic.

The key is ``<pipeline>/<sink>``. Every sink has a partition of the topic for itself (``kafka_claims``), read to the
*high watermark*: a transaction that is open there, which can only be the sink's own, must not hide a newer marker.

Whoever is about to commit reads the marker only after ``init_transactions``, which ends every earlier transaction of
the sink: read before, it could still change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import TransactionId
from airflow_epochs.sinks.kafka_claims import Claims
from airflow_epochs.sinks.kafka_cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka_log import PartitionLog

FORMAT = 1
PARTITIONS = 16
"""To begin with: one for the claims, and one for each of fifteen sinks. More are added when they are needed."""
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "86400000",  # old markers are compacted away once their segment is closed
    "min.cleanable.dirty.ratio": "0.1",
}


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


@dataclass(kw_only=True)
class Markers:
    """The markers of one sink of one pipeline. ``key`` is ``<pipeline>/<sink>``."""

    cluster: Cluster
    topic: str
    key: str
    _partition: int | None = field(default=None, init=False)
    """Once known it is kept: a claim is for ever."""

    def own_partition(self) -> int:
        """The sink's partition of the marker topic, claimed if it has none yet. The topic must exist."""
        if self._partition is None:
            claims = self._claims
            self._partition = claims.find(self.key) or claims.claim(self.key)
        return self._partition

    def newest(self) -> MarkerRecord | None:
        """The newest committed marker as of now; None if there is none, or no marker topic.

        Raises:
            NotApplied: A transaction is open there for longer than the time for a question, or no answer.
            Corrupt: What lies there is no marker.
            Refused: The brokers say no.
        """
        if self._partition is None and self.cluster.topic(self.topic):
            self._partition = self._claims.find(self.key)
        if self._partition is None:
            return None
        log = PartitionLog(cluster=self.cluster, topic=self.topic, partition=self._partition)
        value = log.newest(self.key.encode())
        return self._decoded(value) if value else None

    @property
    def _claims(self) -> Claims:
        return Claims(cluster=self.cluster, topic=self.topic)

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
    """The marker topic, created if missing. Raises Refused if it would not keep markers."""
    facts = cluster.topic(topic) or cluster.create(topic, PARTITIONS, SETTINGS)
    if facts.settings["cleanup.policy"] != "compact":
        raise Refused(
            f"The marker topic {topic} has cleanup.policy={facts.settings['cleanup.policy']}: epoch markers would be "
            "lost.",
            remedy="Set cleanup.policy=compact on it, and look whether markers are missing already.",
        )
    return facts
