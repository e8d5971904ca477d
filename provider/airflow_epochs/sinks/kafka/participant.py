"""What a Kafka sink does in an epoch, in one task's environment.

The vote rehearses the commit as far as that goes without being seen: it makes every record (and so reads the staged
rows once more), looks at both topics and the rights on them, and takes the transactional id as its own, which is when
the brokers say whether they accept it and its timeout. The only traces are the marker topic, the sink's assignment of a
partition of it, and that a process still sending an *earlier* epoch of the sink is fenced: that epoch is complete, or
this one would not be voted on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import (
    Connection,
    Disagreement,
    Elsewhere,
    Environment,
    LastEpoch,
    Row,
    SinkAttempt,
    StagedSample,
)
from airflow_epochs.errors import Corrupt, Refused, located
from airflow_epochs.kafka import schema_registry
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, TransactionId, Vote, attempt_fields
from airflow_epochs.schemas import WriterSchema
from airflow_epochs.sinks.kafka import checks, producer, publish, told_rows, value_formats
from airflow_epochs.sinks.kafka import marker_topic as kafka_marker_topic
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.diagnosis import Case
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers
from airflow_epochs.sinks.kafka.marker_partitions import Assignment
from airflow_epochs.sinks.kafka.rows import KafkaRecord, RowShape
from airflow_epochs.sinks.kafka.value_formats import ValueSchema
from airflow_epochs.sinks.kafka.value_options import AVRO, PROTOBUF
from airflow_epochs.sinks.kafka.voted import Voted
from airflow_epochs.sinks.participant import unknown_without_answer, vote_on
from airflow_epochs.spark.driver.plans import Fit
from airflow_epochs.staged.sampling import rows_in, sample_of
from airflow_epochs.staged.staging import Staging
from airflow_epochs.staged.table import StagedTable

if TYPE_CHECKING:
    from airflow_epochs.sinks.kafka.sink import KafkaSink

log = secrecy.logger(__name__)

RUN = 1_000
"""How many successive rows without key and partition go to one partition: batches are full, and evenly spread."""


@dataclass(frozen=True)
class KafkaParticipant:
    """The operations of ``contracts.Sink`` for one Kafka sink, in one task's environment."""

    sink: KafkaSink
    env: Environment

    @cached_property
    def staged(self) -> StagedTable:
        return StagedTable.of(self.sink, self._target, self.env)

    # -- open ----------------------------------------------------------------------------------------------------

    def require_ready(self, pipeline: str, previous: TransactionId | None) -> None:
        """Look at both topics. A marker topic that is missing is created by the vote on the sink's first epoch."""
        with located(pipeline, sink=self.sink.name):
            if self.sink.value_format:
                schema_registry.require_answer(self._registry, self._subject)
            topic = self._usable_topic()
            markers = self._cluster.topic(self.sink.marker_topic)
            if markers is not None:
                self._require_usable_markers(markers, topic)
            elif previous is not None:
                raise self._marker_topic_gone(previous)
            else:
                kafka_marker_topic.require_creatable(self._cluster, self.sink.marker_topic, topic)

    def _usable_topic(self) -> TopicFacts:
        topic = checks.require_topic(self._cluster, self.sink.topic)
        checks.require_timestamps(topic)
        checks.require_rights(topic, "WRITE")
        return topic

    def _require_usable_markers(self, markers: TopicFacts, topic: TopicFacts) -> None:
        kafka_marker_topic.require_as_safe(kafka_marker_topic.require_compacted(markers), topic)
        checks.require_rights(markers, "READ", "WRITE")

    def _marker_topic_gone(self, previous: TransactionId) -> Refused:
        return Refused(
            f"The marker topic {self.sink.marker_topic} is gone. The ledger expects the marker {previous} in it.",
            code=codes.MARKER_TOPIC_GONE,
        )

    # -- vote ----------------------------------------------------------------------------------------------------

    def vote(self, attempt: SinkAttempt, claim: StagedClaim) -> Vote:
        """Rehearse the commit; a check that fails is a VOTE_ABORT with its reason."""
        return vote_on(claim, partial(self._checked, attempt, claim))

    def _checked(self, attempt: SinkAttempt, claim: StagedClaim) -> Staged:
        staging, staged = self.staged.checked(attempt, claim)
        cluster, markers = self._cluster, self._markers(attempt.txn.pipeline)
        topic = self._usable_topic()
        marker_topic = self._ready_marker_topic(topic, attempt)
        options = producer.within(self._options(markers.assigned()), topic, marker_topic)
        producer.transactional(cluster, options, marker_topic.name)
        self._require_marker(markers, topic, attempt)
        marker = MarkerRecord.of(attempt.txn, topic, marker_topic, staged, attempt.ends)
        checks.require_room(marker_topic, topic, marker)
        voted = Voted.now(topic, marker_topic, markers, cluster.id)
        # Rows that are staged again were promised: their schema was there, and may have been deleted since.
        may_register = self.sink.register_schemas and not attempt.promised
        id_of = partial(schema_registry.id_of, register=may_register, deleted=attempt.promised)
        schema = self._value_schema(staging, id_of)
        self._require_records(attempt.txn, staging, schema, topic)  # last: takes longest
        return replace(staged, detail={**voted.detail(), **(schema.detail() if schema else {})})

    def _value_schema(
        self, staging: Staging, id_of: Callable[[Connection, str, WriterSchema], int]
    ) -> ValueSchema | None:
        """The schema of the values, with its id; None if the sink has no ``value_format``."""
        value_format, given = self.sink.value_format, self.sink.value_schema
        if value_format is None:
            return None
        fields = RowShape.of(staging.shape.schema, self._target, value_format).fields
        schema = value_formats.schema_of(value_format, given, fields, self.sink.topic)
        text = value_formats.writes_by(schema, fields)
        number = id_of(self._registry, self._subject, schema)
        return ValueSchema(value_format=value_format, number=number, text=text, given=given is not None)

    @property
    def _subject(self) -> str:
        return self.sink.subject or f"{self.sink.topic}-value"

    @property
    def _registry(self) -> Connection:
        return self.env.connection(self.sink.registry_conn_id)

    def _ready_marker_topic(self, topic: TopicFacts, attempt: SinkAttempt) -> TopicFacts:
        """The marker topic, as the commit needs it. Only a first epoch creates it: if missing later, it was lost."""
        name = self.sink.marker_topic
        facts = self._cluster.topic(name)
        if facts is None and attempt.previous is None:
            facts = kafka_marker_topic.create(self._cluster, name, topic)
        if facts is None:
            assert attempt.previous, "a first epoch has created it"
            raise self._marker_topic_gone(attempt.previous)
        self._require_usable_markers(facts, topic)
        return facts

    def _require_marker(self, markers: Markers, topic: TopicFacts, attempt: SinkAttempt) -> None:
        found = markers.newest()
        checks.require_marker(found, attempt.previous, markers)
        markers.require_shown(topic, found)
        if found and found.topic == topic.name and found.topic_id not in (None, topic.id):
            log.warning(
                "%s: topic %s was deleted and created again since %s: the rows of that epoch and of earlier ones are "
                "no longer in it",
                attempt.txn,
                topic.name,
                found.txn_id,
            )

    def _require_records(
        self, txn: TransactionId, staging: Staging, schema: ValueSchema | None, topic: TopicFacts
    ) -> None:
        """Require that the topic takes every record, and that making them leaves time to send them."""
        begun = time.monotonic()
        checks.require_records(self._records(txn, staging, schema, topic.partitions), topic)
        checks.require_time(time.monotonic() - begun, self.sink.transaction_timeout)

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, attempt: SinkAttempt, staged: Staged) -> Receipt:
        """Send the epoch and its marker in one transaction. The receipt is made of the marker alone."""
        with located(sink=self.sink.name, **attempt_fields(attempt.txn)):
            return self._receipt(publish.publish(self._transaction(attempt, staged), self.env))

    def _transaction(self, attempt: SinkAttempt, staged: Staged) -> publish.TopicTransaction:
        txn, markers, schema = attempt.txn, self._markers(attempt.txn.pipeline), ValueSchema.of(staged)
        facts, assignment = self._facts(markers, attempt, staged)
        return publish.TopicTransaction(
            cluster=self._cluster,
            markers=markers,
            topic=self.sink.topic,
            facts=facts,
            options=self._options(assignment),
            txn=txn,
            previous=attempt.previous,
            staged=staged,
            ends=attempt.ends,
            records=lambda partitions: self._records(txn, self.staged.promised(attempt, staged), schema, partitions),
        )

    def _facts(
        self, markers: Markers, attempt: SinkAttempt, staged: Staged
    ) -> tuple[tuple[TopicFacts | None, TopicFacts], Assignment]:
        """Both topics as they are now, and the vote's assignment. Creates nothing: a topic that is missing was lost."""
        with unknown_without_answer(self.sink.name):
            rows, marker_topic = (self._cluster.topic(name) for name in (self.sink.topic, self.sink.marker_topic))
            assignment = markers.assignment()
        if marker_topic is None or assignment is None:
            raise publish.lost_since_the_vote(self._cluster, markers, self.sink.topic, attempt.txn, Voted.of(staged))
        return (rows, kafka_marker_topic.require_compacted(marker_topic)), assignment

    def _receipt(self, marker: MarkerRecord) -> Receipt:
        detail: JsonDict = {"topic": marker.topic, "offsets": marker.offsets}
        if marker.topic_id:
            detail |= {"topic_id": marker.topic_id, "marker_topic_id": marker.marker_topic_id}
        assert marker.txn_id, "a marker of an epoch"
        return Receipt(
            txn_id=marker.txn_id,
            sink=self.sink.name,
            rows=marker.rows,
            files=marker.files,
            bytes=marker.size,
            version=None,
            place=marker.place or None,  # an operator who puts a marker back does not know it
            committed_at=marker.at,
            detail=detail,
        )

    def fence(self, pipeline: str, over: Collection[TransactionId | None], by: TransactionId) -> bool:
        """Set the marker to ``by``, after taking over the transactional id: then nobody else changes the marker."""
        with located(pipeline, sink=self.sink.name):
            markers = self._markers(pipeline)
            if (assignment := markers.assignment()) is None:
                return False
            own = producer.transactional(self._cluster, self._options(assignment), markers.topic)
            found = markers.newest()
            if (found.txn_id if found else None) in over:
                found = MarkerRecord.of_fence(by, self.sink.topic, found)
                markers.put(own, found)
            return found is not None and found.txn_id == by

    def fit(self) -> Fit:
        """What the topic takes of a record now; nothing is known of a topic that does not exist."""
        facts = self._cluster.topic(self.sink.topic)
        if facts is None:
            return Fit(is_topic=True, calendar=True, json=True)
        most = min(facts.record_bytes_max, producer.RECORD_BYTES_MAX)
        return Fit(
            is_topic=True,
            calendar=True,
            json=True,
            record_bytes=most,
            packed=self.sink.value_format in (AVRO, PROTOBUF),
            keyed=facts.is_compacted,
            partitions=facts.partitions,
        )

    def rows_of(self, receipt: Receipt, pipeline: str) -> Iterator[Row]:
        """The epoch's records as consumers see them now."""
        with located(pipeline, sink=self.sink.name):
            source = f"{pipeline}/{self.sink.name}/{receipt.txn_id.epoch}"
            yield from told_rows.of_epoch(self._cluster, self.sink.topic, receipt, source)

    def rows_staged(self, attempt: SinkAttempt, place: str) -> Iterator[Row]:
        """The records that a commit would send."""
        staging, _ = self.staged.checked(attempt, StagedClaim(place=place))
        return told_rows.of_records(self._told_records(attempt.txn, staging))

    def sample(self, attempt: SinkAttempt, place: str, most: int) -> StagedSample:
        """Some staged rows, as Spark wrote them; and why a row cannot become a record, if there is such a row."""
        staging, _ = self.staged.checked(attempt, StagedClaim(place=place))
        seen = sample_of(staging, rows_in(self.staged.batches(staging)), most)
        return replace(seen, problem=self._unfit(attempt.txn, staging))

    def _unfit(self, txn: TransactionId, staging: Staging) -> str | None:
        """Why no records can be made of the rows, as far as that shows; None if nothing was found."""
        try:
            deque(self._told_records(txn, staging), maxlen=0)  # consuming the records checks each row
        except Refused as no:
            return None if no.code is codes.DRY_RUN_UNTOLD else no.reason
        return None

    def last_committed(self, pipeline: str) -> Marker | None:
        """The marker in the marker topic now."""
        with located(pipeline, sink=self.sink.name):
            found = self._markers(pipeline).newest()
        return Marker.of(found.txn_id) if found and found.txn_id else None

    def last_epoch(self, pipeline: str) -> LastEpoch | None:
        """The epoch of the newest marker, with all that the marker says."""
        with located(pipeline, sink=self.sink.name):
            found = self._markers(pipeline).newest()
        if found is None or found.txn_id is None:
            return None
        return LastEpoch(
            marker=Marker.of(found.txn_id),
            txn=found.txn_id,
            ends=found.ends or None,
            receipt=self._receipt(found),
            elsewhere=self._elsewhere(found),
        )

    def may_hold(self, receipt: Receipt) -> bool:
        """Whether the receipt is of the sink's topic, by the id that the brokers gave it.

        A receipt of version 0.1 lacks the id. Then the marker beside this sink's tells whether it is the same cluster.
        """
        if receipt.detail.get("topic") != self.sink.topic:
            return False
        facts, known = self._cluster.topic(self.sink.topic), receipt.detail.get("topic_id")
        if facts is None or known:
            return facts is not None and known == facts.id
        key = f"{receipt.txn_id.pipeline}/{receipt.sink}"
        return Markers(cluster=self._cluster, topic=self.sink.marker_topic, key=key).newest() is not None

    def _elsewhere(self, found: MarkerRecord) -> Elsewhere | None:
        if found.topic == self.sink.topic:
            return None
        return Elsewhere(there=f"topic {found.topic}", here=self._target)

    def diagnose(self, disagreement: Disagreement) -> Corrupt | None:
        """Why the marker is not the expected one."""
        case = Case(
            markers=self._markers(disagreement.pipeline),
            topic=self.sink.topic,
            expected=disagreement.expected,
            recorded=disagreement.receipt.detail if disagreement.receipt else {},
            in_doubt=disagreement.in_doubt,
        )
        with located(disagreement.pipeline, sink=self.sink.name):
            return case.diagnosed()

    # -- of what -------------------------------------------------------------------------------------------------

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(read_connection(self.env.connection(self.sink.conn_id)))

    @property
    def _target(self) -> str:
        return f"topic {self.sink.topic}"

    def _markers(self, pipeline: str) -> Markers:
        key = f"{pipeline}/{self.sink.name}"
        return Markers(cluster=self._cluster, topic=self.sink.marker_topic, key=key, rows=self.sink.topic)

    def _options(self, assignment: Assignment) -> dict[str, Any]:
        return producer.producer_options(assignment.transactional_id, self.sink.transaction_timeout, self.sink.options)

    def _told_records(self, txn: TransactionId, staging: Staging) -> Iterator[KafkaRecord]:
        """The records of a dry run or preview: nothing is registered, and their partitions do not matter."""
        return self._records(txn, staging, self._value_schema(staging, schema_registry.known_id_of), 1)

    def _records(
        self, txn: TransactionId, staging: Staging, schema: ValueSchema | None, partitions: int
    ) -> Iterator[KafkaRecord]:
        shape = replace(RowShape.of(staging.shape.schema, self._target, self.sink.value_format), schema=schema)
        return shape.records(
            self.staged.batches(staging),
            f"{txn.pipeline}/{self.sink.name}/{txn.epoch}",
            lambda number: (txn.epoch + number // RUN) % partitions,
        )
