"""The epoch marker: a record in the same transaction as the rows, in a compacted topic.

Its key is ``<pipeline>/<sink>``, and the newest record of a key counts. Every sink has its own partition of the topic
(``marker_partitions``), which is read to the *high watermark*: an open transaction there, which can only be the sink's
own, must not hide a newer marker.

A commit reads the marker only after ``init_transactions``, which ends every earlier transaction of the sink. Before
that the marker could still change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.contracts import Ends
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import Staged, TransactionId
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.committed_records import PartitionLog
from airflow_epochs.sinks.kafka.hanging import Own, require_none
from airflow_epochs.sinks.kafka.marker_partitions import Assignment, Assignments

if TYPE_CHECKING:
    from confluent_kafka import Producer

PUT_S = 60
FORMAT = 1
_LATER = frozenset({"topic_id", "marker_topic_id", "ends", "vouched_end"})
"""Fields that markers of version 0.1 lack."""


@dataclass(frozen=True, kw_only=True)
class MarkerRecord:
    """What the marker says about its epoch. The receipt is made from it.

    Attributes:
        txn_id: The epoch's transaction; None only if an operator recorded that the topic has no epoch of the sink.
        rows, files, size, place: What was staged and sent.
        offsets: Per partition of the topic, a range ``[start, end)`` that contains the rows, and perhaps records that
            others sent at the same time. Partitions without new records are left out.
        at: When it was sent.
        topic_id, marker_topic_id: The brokers' ids of both topics at that time; None in markers of version 0.1.
        ends: Topic -> partition -> first offset after the epoch's input, in the form of ``starting``.
        vouched_end: Set if an operator put the marker back: the end of the sink's partition at that time.
    """

    txn_id: TransactionId | None
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
        """The marker for an epoch that is about to be sent. Its ``offsets`` become known later."""
        return cls(
            txn_id=txn,
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

    @classmethod
    def of_fence(cls, by: TransactionId, topic: str, before: MarkerRecord | None) -> MarkerRecord:
        """The marker for a fence. It repeats the position and the topic of the epoch before."""
        at, places = datetime.now(timezone.utc).isoformat(), ("topic", "topic_id", "marker_topic_id", "ends")
        told = {name: getattr(before, name) for name in places} if before else {"topic": topic}
        return cls(txn_id=by, rows=0, files=0, size=0, place="", offsets={}, at=at, **told)

    def encoded(self) -> bytes:
        """The marker as JSON, the record's value."""
        # Only people and other programs read "epoch".
        value = {"epoch": self.txn_id.epoch if self.txn_id else 0, **asdict(self)}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, value: bytes) -> MarkerRecord:
        """The inverse of ``encoded``. Ignores fields that this version does not know.

        Raises:
            ValueError: The value is not a marker, or its format is newer.
        """
        given: Any = json.loads(value)
        try:
            names = (name for name in cls.__dataclass_fields__ if name in given or name not in _LATER)
            told = {name: given[name] for name in names}
            if told["format"] > FORMAT:
                raise ValueError(f"its format is {told['format']}, and this version reads formats up to {FORMAT}")
            txn_id = None if told["txn_id"] is None else TransactionId.parse(told["txn_id"])
            return cls(**{**told, "txn_id": txn_id})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a field is missing or wrong ({error})") from error


@dataclass(kw_only=True)
class Markers:
    """The markers of one sink of one pipeline. ``key`` is ``<pipeline>/<sink>``, ``rows`` the topic of its rows."""

    cluster: Cluster
    topic: str
    key: str
    rows: str | None = None
    _assignment: Assignment | None = field(default=None, init=False)
    """Kept once it is known: an assignment never changes."""

    def assigned(self, *, in_ours: bool = False) -> Assignment:
        """The sink's assignment in the marker topic, which must exist. Makes one if the sink has none."""
        if self._assignment is None:
            assignments = self._assignments
            self._assignment = assignments.find(self.key) or assignments.assign(self.key, in_ours=in_ours)
        return self._assignment

    def assignment(self) -> Assignment | None:
        """The sink's assignment; None if it has none, or the marker topic does not exist."""
        if self._assignment is None and self.cluster.topic(self.topic):
            self._assignment = self._assignments.find(self.key)
        return self._assignment

    def newest(self) -> MarkerRecord | None:
        """The newest committed marker; None if there is none, or no marker topic.

        Raises:
            NotApplied: A transaction stayed open for too long, or the brokers do not answer.
            Corrupt: The newest record is not a marker.
            Refused: The brokers refused.
        """
        if self.assignment() is None:
            return None
        value = self.log.newest(self.key.encode())
        return None if value is None else self._decoded(value)

    def put(self, producer: Producer, record: MarkerRecord) -> None:
        """Send a marker without rows. ``producer`` has the sink's transactional id; it has begun no transaction."""
        with self.cluster.asking("put the marker"):
            producer.begin_transaction()
            producer.produce(self.topic, key=self.key, value=record.encoded(), partition=self.assigned().partition)
            producer.commit_transaction(PUT_S)

    @property
    def log(self) -> PartitionLog:
        """The sink's partition. Call ``assigned`` or ``assignment`` before."""
        own = self._assignment
        assert own
        return PartitionLog(
            cluster=self.cluster,
            topic=self.topic,
            partition=own.partition,
            owner=own.transactional_id,
            rows=self.rows,
        )

    def require_shown(self, rows: TopicFacts, found: MarkerRecord | None) -> None:
        """``hanging.require_none``. ``found``: the newest marker, read after the transactional id was taken over."""
        own = self._assignment
        assert own
        is_of_rows = found is not None and found.topic == rows.name and found.topic_id in (None, rows.id)
        committed = found.offsets if found and is_of_rows else {}
        epoch = found.txn_id.epoch if found and found.txn_id else 0
        require_none(self.cluster, rows, Own(self.key, own.transactional_id, epoch, committed))

    @property
    def _assignments(self) -> Assignments:
        return Assignments(cluster=self.cluster, topic=self.topic)

    def _decoded(self, value: bytes) -> MarkerRecord:
        if not value:
            raise Corrupt(
                f"Another program has deleted the marker of {self.key} in topic {self.topic}: its newest record is a "
                "tombstone. Nothing was sent.",
                code=codes.MARKER_DELETED,
            )
        try:
            return MarkerRecord.decoded(value)
        except ValueError as error:
            raise Corrupt(
                f"The newest record of key {self.key} in topic {self.topic} is not an epoch marker: {error}.",
                code=codes.MARKER_FOREIGN,
                remedy="Use the provider's version that wrote the record, or a newer one. If another program wrote it, "
                "stop that program, and put the marker back: docs/kafka-sink.md, 'The marker is lost'.",
            ) from error
