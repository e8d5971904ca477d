"""What a Kafka sink does in an epoch, in one task's environment.

The vote rehearses the commit as far as that goes without being seen: it makes every record (and so reads the staged
rows once more), looks at both topics and the rights on them, and takes the transactional id as its own, which is when
the brokers say whether they accept it and its timeout. The only traces are the marker topic, the sink's claim to a
partition of it, and that a process still sending an *earlier* epoch of the sink is fenced: that epoch is complete, or
this one would not be voted on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow_epochs.environment import Environment
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused, RowsGone
from airflow_epochs.model import Marker, Receipt, Staged, StagedClaim, Vote, VoteKind
from airflow_epochs.sinks import kafka_checks, kafka_producer, kafka_publish
from airflow_epochs.sinks.base import SinkAttempt
from airflow_epochs.sinks.kafka_cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka_marker import MarkerRecord, Markers, ready_topic
from airflow_epochs.sinks.kafka_rows import Record, RowShape
from airflow_epochs.sinks.staged_table import StagedTable, staging_root
from airflow_epochs.sources.kafka_connection import read_connection
from airflow_epochs.storage import storage_options

if TYPE_CHECKING:
    from airflow_epochs.sinks.kafka import KafkaSink

RUN = 1_000
"""So many rows without key and partition, one after the other, go to one partition: full batches, evenly spread."""


@dataclass(frozen=True)
class KafkaParticipant:
    """The operations of ``sinks.base.Sink`` for one Kafka sink, in one task's environment."""

    sink: KafkaSink
    env: Environment

    @cached_property
    def staged(self) -> StagedTable:
        conn_id = self.sink.storage_conn_id
        return StagedTable(
            root=staging_root(self.sink.staging, self.sink.name),
            sink=self.sink.name,
            target=self._target,
            options=storage_options(self.env.connection(conn_id) if conn_id else None),
        )

    # -- vote ----------------------------------------------------------------------------------------------------

    def vote(self, attempt: SinkAttempt, claim: StagedClaim) -> Vote:
        """Rehearse the commit; a check that fails is a VOTE_ABORT with its reason."""
        if claim.problem:
            return Vote(vote=VoteKind.VOTE_ABORT, reason=claim.problem)
        try:
            staged = self._checked(attempt, claim)
        except (Refused, RowsGone) as no:
            return Vote(vote=VoteKind.VOTE_ABORT, reason=f"{no.what} What to do: {no.remedy}")
        return Vote(vote=VoteKind.VOTE_COMMIT, staged=staged)

    def _checked(self, attempt: SinkAttempt, claim: StagedClaim) -> Staged:
        _, staged = self.staged.checked(attempt, claim)
        pipeline, cluster = attempt.txn.pipeline, self._cluster
        topic = kafka_checks.require_topic(cluster, self.sink.topic)
        marker_topic, markers = ready_topic(cluster, self.sink.marker_topic), self._markers(pipeline)
        kafka_checks.require_rights(topic, "WRITE")
        kafka_checks.require_rights(marker_topic, "READ", "WRITE")
        markers.own_partition()
        options = kafka_producer.within(self._options(pipeline), topic, marker_topic)
        kafka_producer.transactional(cluster, options, marker_topic.name)
        kafka_checks.require_marker(markers.newest(), attempt.previous, markers)
        kafka_checks.require_records(self._records(attempt, staged, topic.partitions), topic)  # last: takes longest
        return staged

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, attempt: SinkAttempt, staged: Staged) -> Receipt:
        """Send the epoch and its marker in one transaction. The receipt is made of the marker alone."""
        pipeline = attempt.txn.pipeline
        markers = self._markers(pipeline)
        this = kafka_publish.Publication(
            cluster=self._cluster,
            markers=markers,
            topic=self.sink.topic,
            facts=self._facts(markers),
            options=self._options(pipeline),
            txn=attempt.txn,
            previous=attempt.previous,
            staged=staged,
            records=partial(self._records, attempt, staged),
        )
        return self._receipt(kafka_publish.publish(this, self.env))

    def _facts(self, markers: Markers) -> tuple[TopicFacts | None, TopicFacts]:
        try:
            facts = self._cluster.topic(self.sink.topic), ready_topic(self._cluster, self.sink.marker_topic)
            markers.own_partition()  # was claimed by the vote, unless the topic has been deleted since
            return facts
        except Refused:
            raise
        except NotApplied as error:
            raise OutcomeUnknown(
                f"The sink cannot be asked now: {error.what}", remedy=error.remedy, sink=self.sink.name
            ) from error

    def _receipt(self, marker: MarkerRecord) -> Receipt:
        return Receipt(
            txn_id=marker.txn_id,
            sink=self.sink.name,
            rows=marker.rows,
            files=marker.files,
            bytes=marker.size,
            version=None,
            place=marker.place,
            committed_at=marker.at,
            detail={"topic": marker.topic, "offsets": marker.offsets},
        )

    def last_committed(self, pipeline: str) -> Marker | None:
        """The marker in the marker topic now."""
        found = self._markers(pipeline).newest()
        return Marker.of(found.txn) if found else None

    # -- of what -------------------------------------------------------------------------------------------------

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(read_connection(self.env.connection(self.sink.conn_id)))

    @property
    def _target(self) -> str:
        return f"topic {self.sink.topic}"

    def _markers(self, pipeline: str) -> Markers:
        return Markers(cluster=self._cluster, topic=self.sink.marker_topic, key=f"{pipeline}/{self.sink.name}")

    def _options(self, pipeline: str) -> dict[str, Any]:
        # One id for all epochs, or a stray producer of an earlier one would not be fenced.
        return kafka_producer.producer_options(
            f"{pipeline}.{self.sink.name}", self.sink.transaction_timeout, self.sink.options
        )

    def _records(self, attempt: SinkAttempt, staged: Staged, partitions: int) -> Iterator[Record]:
        txn = attempt.txn
        shape = RowShape.of(self.staged.promised(attempt, staged).shape.schema, self._target)
        return shape.records(
            self.staged.rows(attempt, staged),
            f"{txn.pipeline}/{self.sink.name}/{txn.epoch}",
            lambda number: (txn.epoch + number // RUN) % partitions,
        )
