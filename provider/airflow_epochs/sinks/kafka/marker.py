"""The epoch marker: a record in the transaction of the rows, the newest of its key in a compacted topic.

The key is ``<pipeline>/<sink>``. Every sink has a partition of the topic for itself (``kafka_claims``), read to the
*high watermark*: a transaction that is open there, which can only be the sink's own, must not hide a newer marker.

Whoever is about to commit reads the marker only after ``init_transactions``, which ends every earlier transaction of
the sink: read before, it could still change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import Staged, TransactionId
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.committed_records import PartitionLog
from airflow_epochs.sinks.kafka.marker_partitions import Assignment, Assignments

FORMAT = 1
Ends = Mapping[str, Mapping[str, int]]
"""Topic -> partition -> offset, as ``starting`` takes it."""
_LATER = frozenset({"topic_id", "marker_topic_id", "ends", "vouched_end"})
"""Fields that markers of version 0.1 do not have."""


@dataclass(frozen=True, kw_only=True)
class MarkerRecord:
    """What the marker says of the epoch that it came with; of which the receipt is made.

    Attributes:
        txn_id: None only where an operator put on record that the topic has no epoch of the sink.
        rows, files, size, place: What was staged and sent.
        offsets: Per partition of the topic, a range ``[start, end)`` in which the rows lie, with those that others
            sent at the same time; partitions where nothing was added are left out.
        at: When it was sent.
        topic_id, marker_topic_id: The brokers' ids of both topics then; None in markers of version 0.1.
        ends: Topic -> partition -> first offset after the epoch's input, as ``starting`` takes it.
        vouched_end: Of a marker that an operator put back: where the sink's partition ended then.
    """

    txn_id: str | None
    topic: str
    rows: int
    files: int
    size: int
    place: str
    offsets: dict[str, list[int]]
    at: str
    topic_id: str | None = None
    marker_topic_id: str | None = None
    ends: Ends = field(default_factory=dict)
    vouched_end: int | None = None
    format: int = FORMAT

    @classmethod
    def of(
        cls, txn: TransactionId, topic: TopicFacts, marker_topic: TopicFacts, staged: Staged, ends: Ends
    ) -> MarkerRecord:
        """Of an epoch that is about to be sent; ``offsets`` are known later."""
        return cls(
            txn_id=str(txn),
            topic=topic.name,
            rows=staged.rows,
            files=staged.files,
            size=staged.bytes,
            place=staged.place,
            offsets={},
            at=datetime.now(timezone.utc).isoformat(),
            topic_id=topic.id,
            marker_topic_id=marker_topic.id,
            ends=ends,
        )

    @property
    def txn(self) -> TransactionId | None:
        return TransactionId.parse(self.txn_id) if self.txn_id else None

    def encoded(self) -> bytes:
        value = {"epoch": self.txn.epoch if self.txn else 0, **asdict(self)}  # the epoch for people and other programs
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, value: bytes) -> MarkerRecord:
        """The inverse of ``encoded``; fields that this version does not know are ignored.

        Raises:
            ValueError: It is none, or of a newer format.
        """
        given: Any = json.loads(value)
        try:
            names = (name for name in cls.__dataclass_fields__ if name in given or name not in _LATER)
            marker = cls(**{name: given[name] for name in names})
            if marker.format > FORMAT:
                raise ValueError(f"its format is {marker.format}, this version knows {FORMAT}")
            if marker.txn_id is not None:
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
    _assignment: Assignment | None = field(default=None, init=False)
    """Once known it is kept: an assignment is for ever."""

    def assigned(self, *, in_ours: bool = False) -> Assignment:
        """The sink's assignment in the marker topic, made if it has none yet. The topic must exist."""
        if self._assignment is None:
            assignments = self._assignments
            self._assignment = assignments.find(self.key) or assignments.assign(self.key, in_ours=in_ours)
        return self._assignment

    def assignment(self) -> Assignment | None:
        """The sink's assignment; None if it has none, or there is no marker topic."""
        if self._assignment is None and self.cluster.topic(self.topic):
            self._assignment = self._assignments.find(self.key)
        return self._assignment

    def newest(self) -> MarkerRecord | None:
        """The newest committed marker as of now; None if there is none, or no marker topic.

        Raises:
            NotApplied: A transaction is open there for longer than the time for a question, or no answer.
            Corrupt: What lies there is no marker.
            Refused: The brokers say no.
        """
        if self.assignment() is None:
            return None
        value = self.log.newest(self.key.encode())
        return None if value is None else self._decoded(value)

    @property
    def log(self) -> PartitionLog:
        """The sink's partition. The sink must have an assignment."""
        assert self._assignment
        return PartitionLog(cluster=self.cluster, topic=self.topic, partition=self._assignment.partition)

    @property
    def _assignments(self) -> Assignments:
        return Assignments(cluster=self.cluster, topic=self.topic)

    def _decoded(self, value: bytes) -> MarkerRecord:
        if not value:
            raise Corrupt(
                f"Somebody has deleted the marker of {self.key} in topic {self.topic}: its newest record is a "
                "tombstone, which is not ours.",
                remedy="Find out who did, and put the marker back: docs/kafka-sink.md, 'The marker is lost'. Nothing "
                "was sent.",
            )
        try:
            return MarkerRecord.decoded(value)
        except ValueError as error:
            raise Corrupt(
                f"The newest record of key {self.key} in topic {self.topic} is no epoch marker: {error}.",
                remedy="Use the provider's version that wrote it, or one that is newer. If something else writes to "
                "this topic, stop it. See docs/kafka-sink.md, 'The marker topic'.",
            ) from error
