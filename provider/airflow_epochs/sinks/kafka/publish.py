"""One epoch, one transaction: rows and marker, all or nothing.

    init_transactions → read the marker → nothing hangs → begin → rows → flush → marker → flush → commit

``init_transactions`` under the sink's own transactional id ends whatever earlier transaction of it there is, and
fences its producer: from then on the marker changes only by this one. No answer ever counts as "not committed":
either the transaction is known to be aborted, or the marker is read, here or by the next try. The caller fills in
the place of each error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Disagreement, Ends, Environment, waive_command
from airflow_epochs.errors import Corrupt, EpochError, NotApplied, OutcomeUnknown, RowsGone
from airflow_epochs.model import Marker, Shown, Staged, TransactionId, compare
from airflow_epochs.sinks.kafka import checks
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.compression import compresses
from airflow_epochs.sinks.kafka.diagnosis import Case, state
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers
from airflow_epochs.sinks.kafka.producer import SLICE_S, fenced, transactional, within
from airflow_epochs.sinks.kafka.rows import Headers, KafkaRecord
from airflow_epochs.sinks.kafka.voted import Voted
from airflow_epochs.sinks.participant import unknown_without_answer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

log = secrecy.logger(__name__)

COMMIT_S = 120
ABORT_S = 10
SERVE_EVERY = 1_000
HELD_BACK_S_MIN = 1
"""A quota that holds records back for less than this is no reason for a record to time out."""
Failure = tuple[str, "KafkaError"]
"""Why a record failed: its partition, and the error."""


@dataclass(frozen=True, kw_only=True)
class TopicTransaction:
    """What one commit sends, where, and how.

    Attributes:
        facts: The topics of rows and of markers as they are now; None for the topic of rows if it is gone.
        options: As ``producer_options`` makes them.
        ends: The position after the epoch, which the marker keeps.
        records: Makes the records, given the topic's number of partitions.
    """

    cluster: Cluster
    markers: Markers
    topic: str
    facts: tuple[TopicFacts | None, TopicFacts]
    options: Mapping[str, Any]
    txn: TransactionId
    previous: TransactionId | None
    staged: Staged
    ends: Ends
    records: Callable[[int], Iterator[KafkaRecord]]

    @property
    def sink(self) -> str:
        return self.markers.key.rpartition("/")[2]


def publish(this: TopicTransaction, env: Environment) -> MarkerRecord:
    """Send the epoch, once. A repeat finds its marker and sends nothing.

    Raises:
        NotApplied: The topic shows the previous epoch: no transaction that this call began can change that.
        OutcomeUnknown: The brokers cannot be asked whether this or an earlier try was committed.
        RowsGone: The topic shows the previous epoch, and staged rows are gone.
        Refused: The brokers refused, or the marker topic takes no marker of this size any more.
        Corrupt: The marker is of neither the previous transaction nor this one.
    """
    heard = _Heard()
    producer, found = _own_producer(this, env, heard)
    stands = compare(found.txn_id if found else None, this.previous, this.txn)
    if found and stands is Shown.ALREADY:
        return found
    _require_kept(this, found)
    _require_previous(this, found, stands)
    return _Transaction(this, producer, env, heard).run()


@dataclass
class _Heard:
    """What the client reports through callbacks.

    Attributes:
        failed: The records that failed.
        held_back_s: The longest time for which a broker has made the client wait, because of a quota. 0 if it is
            shorter than ``HELD_BACK_S_MIN``.
    """

    failed: list[Failure] = field(default_factory=list)
    held_back_s: float = 0

    def delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failed.append((f"{message.topic()}[{message.partition()}]", error))

    def throttled(self, event: Any) -> None:
        if event.throttle_time >= HELD_BACK_S_MIN:
            self.held_back_s = max(self.held_back_s, event.throttle_time)


def _own_producer(this: TopicTransaction, env: Environment, heard: _Heard) -> tuple[Producer, MarkerRecord | None]:
    """The producer, and the marker read after it: no other producer of this id can change that marker."""
    options = within(this.options, *(facts for facts in this.facts if facts))
    with unknown_without_answer(this.sink):
        listening = {"on_delivery": heard.delivered, "throttle_cb": heard.throttled}
        producer = transactional(this.cluster, {**options, **listening}, this.markers.topic)
        env.reached("kafka.init")
        found, (rows, _) = this.markers.newest(), this.facts
        if rows:
            this.markers.require_shown(rows, found)
        return producer, found


def _require_kept(this: TopicTransaction, found: MarkerRecord | None) -> None:
    """Require that no marker can have been lost since the vote: else a missing marker does not mean "not sent"."""
    voted, now = Voted.of(this.staged), this.cluster.topic(this.markers.topic)  # after the marker was read
    beginning, _ = this.markers.log.bounds()
    if voted and voted.has_lost_markers(found, now, beginning):
        raise lost_since_the_vote(this.cluster, this.markers, this.topic, this.txn, voted)


def lost_since_the_vote(
    cluster: Cluster, markers: Markers, topic: str, txn: TransactionId, voted: Voted | None
) -> Corrupt:
    """The error for a marker topic that is not the same as at the vote, or has lost records since."""
    sink = markers.key.rpartition("/")[2]
    with unknown_without_answer(sink):
        now = cluster.id
    if voted and voted.cluster_id and now not in (None, voted.cluster_id):
        return _in_another_cluster(now, voted.cluster_id, topic, txn, sink)
    return Corrupt(
        f"The sink cannot tell whether {txn} was sent to topic {topic}. Its marker would be in topic {markers.topic}, "
        f"but since the vote, that topic {state(markers, voted.marker_topic_id if voted else None)}. This task sent "
        "nothing.",
        code=codes.KAFKA_SENT_UNKNOWN,
        remedy="Point the connection back if it leads to another cluster than before. Else look whether topic "
        f"{topic} has epoch {txn.epoch}, and put the marker back, as docs/kafka-sink.md shows in 'The marker is lost'. "
        "Clear the commit task.",
    )


def _in_another_cluster(now: str | None, voted: str, topic: str, txn: TransactionId, sink: str) -> Corrupt:
    return Corrupt(
        f"The connection leads to the Kafka cluster {now}, but {txn} was voted on in the cluster {voted}. This task "
        "sent nothing.",
        code=codes.CLUSTER_CHANGED,
        remedy="Point the connection back to that cluster, and clear the commit task. Only if this is the same "
        f"cluster, set up anew with the records of topic {topic}: put the marker back, as docs/kafka-sink.md shows in "
        "'The marker is lost'. If it is gone for good, complete the epoch without this sink's rows: "
        f"`{waive_command(txn, sink)}`.",
    )


def _giving_back(rows: TopicFacts, voted: int) -> str:
    """How an operator gives the topic the number of partitions that it had at the vote."""
    again = f"--topic {rows.name} --partitions {voted}"
    if rows.partitions < voted:
        return f"Give it {voted} partitions again: {rows.command('kafka-topics.sh', '--alter', again)}."
    return (
        f"Delete it, and create it again with {voted} partitions and its old settings: "
        f"{rows.command('kafka-topics.sh', '--delete --topic', rows.name)}, then "
        f"{rows.command('kafka-topics.sh', '--create', again)}."
    )


def _require_previous(this: TopicTransaction, found: MarkerRecord | None, stands: Shown) -> None:
    if stands is Shown.EXPECTED:
        return
    case = Case(markers=this.markers, topic=this.topic, expected=this.previous, recorded={}, in_doubt=this.txn)
    error = case.diagnosed()
    if error is None:
        raise OutcomeUnknown(
            f"The marker of {this.markers.key} in topic {this.markers.topic} has just changed: another process is "
            "committing this epoch.",
            code=codes.KAFKA_COMMIT_UNKNOWN,
        )
    shown = Marker.of(found.txn_id) if found and found.txn_id else None
    seen = Disagreement(pipeline=this.txn.pipeline, found=shown, expected=this.previous, in_doubt=this.txn)
    error.remedy += seen.while_in_doubt(this.sink)
    raise error


@dataclass(frozen=True)
class _Transaction:
    this: TopicTransaction
    producer: Producer
    env: Environment
    heard: _Heard
    begun: float = field(default_factory=time.monotonic)

    def run(self) -> MarkerRecord:
        from confluent_kafka import KafkaException

        partitions = self._partitions()
        self._require_taken(self._marker({}, {}), self.this.facts[0])  # too large even if empty: send no row
        before = self.this.cluster.ends(self.this.topic, partitions)
        with self.this.cluster.asking("begin a transaction"):
            self.producer.begin_transaction()
        try:
            marker = self._sent(partitions, before)
        except (KafkaException, SystemError) as error:
            told = self._not_applied(_told_by(error))  # first: the abort makes the records still to be sent fail
            self._abort()
            raise told from error
        except BaseException:  # whatever stops this task must not leave the topic's readers waiting
            self._abort()
            raise
        marker = self._committed(marker)
        self.env.reached("kafka.commit.after")
        return marker

    def _partitions(self) -> range:
        rows, _ = self.this.facts
        if rows is None:
            raise NotApplied(
                f"Topic {self.this.topic} is gone. It existed at the vote.",
                code=codes.TOPIC_CHANGED,
                remedy="Create it again, with as many partitions as before, and clear the commit task. Or complete the "
                f"epoch without this sink's rows: `{waive_command(self.this.txn, self.this.sink)}`.",
            )
        voted = Voted.of(self.this.staged)
        if voted and rows.id != voted.topic_id:
            self._require_partitions(rows, voted.partitions)
        return range(rows.partitions)

    def _require_partitions(self, rows: TopicFacts, voted: int) -> None:
        log.warning("%s: topic %s was deleted and created again since the vote", self.this.txn, rows.name)
        if rows.partitions != voted:
            raise NotApplied(
                f"Topic {rows.name} was deleted after the vote, and created again with {rows.partitions} partitions "
                f"instead of {voted}. A client may have created it (auto.create.topics.enable).",
                code=codes.TOPIC_CHANGED,
                remedy=f"{_giving_back(rows, voted)} Clear the commit task. Or complete the epoch without this sink's "
                f"rows: `{waive_command(self.this.txn, self.this.sink)}`.",
            )

    # -- sending -------------------------------------------------------------------------------------------------

    def _sent(self, partitions: range, before: Mapping[int, int]) -> MarkerRecord:
        """Send the rows, then the marker: it says where they are, and blocks its own partition for a moment only."""
        self.env.reached("kafka.begin")
        self._send_rows(len(partitions))
        self.env.reached("kafka.rows.sent")
        now = self._same_topic()  # somebody may have added partitions meanwhile: the producer uses them
        marker = self._marker(before, self.this.cluster.ends(self.this.topic, range(now.partitions)))
        self._require_taken(marker, now)
        markers = self.this.markers
        self._produce(markers.topic, markers.key.encode(), marker.encoded(), markers.assigned().partition, [])
        self._flush()
        self.env.reached("kafka.commit.before")
        return marker

    def _same_topic(self) -> TopicFacts:
        """The topic, if nobody has deleted it meanwhile. Sending may create it again, without the earlier rows."""
        (before, _), now = self.this.facts, self.this.cluster.topic(self.this.topic)
        if before is None or now is None or now.id != before.id:
            raise NotApplied(
                f"Topic {self.this.topic} was deleted while the sink sent this epoch to it. The sink ended the "
                "transaction.",
                code=codes.TOPIC_CHANGED,
                remedy="Create it again, with as many partitions as before, unless it exists. Clear the commit task: "
                "it sends the epoch again.",
            )
        return now

    def _send_rows(self, partitions: int) -> None:
        sent = 0
        topic, produce = self.this.topic, self.producer.produce
        for sent, (key, value, partition, headers) in enumerate(self.this.records(partitions), 1):
            try:  # as in _produce, but this is done millions of times: arguments by position are a sixth cheaper
                produce(topic, value, key, -1 if partition is None else partition, None, None, 0, headers)
            except BufferError:
                self._produce(topic, key, value, partition, headers)
            if not sent % SERVE_EVERY:
                self._serve(0)
        self.env.reached("kafka.rows.queued")
        self._flush()
        if sent != self.this.staged.rows:
            raise RowsGone(
                f"The sink found {sent} rows in {self.this.staged.place}, but its vote promised "
                f"{self.this.staged.rows}. Nothing was committed.",
                code=codes.PROMISED_ROWS_GONE,
            )

    def _produce(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None, headers: Headers
    ) -> None:
        while True:
            try:
                self.producer.produce(topic, value, key, -1 if partition is None else partition, headers=headers)
                return
            except BufferError:  # full: wait for acknowledgements. A record without one fails in bounded time.
                self._serve(SLICE_S)

    def _flush(self) -> None:
        while self.producer.flush(SLICE_S):
            self._require_sound()
        self._require_sound()

    def _serve(self, seconds: float) -> None:
        self.producer.poll(seconds)
        self._require_sound()

    def _require_sound(self) -> None:
        if failed := self.heard.failed:
            raise self._not_applied(failed[0][1])

    def _marker(self, before: Mapping[int, int], after: Mapping[int, int]) -> MarkerRecord:
        rows, marker_topic = self.this.facts
        assert rows
        begins = {partition: before.get(partition, 0) for partition in sorted(after)}
        sent = {str(p): [begin, after[p]] for p, begin in begins.items() if after[p] > begin}
        return replace(
            MarkerRecord.of(self.this.txn, rows, marker_topic, self.this.staged, self.this.ends), offsets=sent
        )

    def _require_taken(self, marker: MarkerRecord, rows: TopicFacts | None) -> None:
        assert rows
        checks.require_taken(self.this.facts[1], rows, marker, self.this.markers.key)

    # -- the end -------------------------------------------------------------------------------------------------

    def _abort(self) -> bool:
        """Abort. Returns whether the brokers know of the end. If not, a timeout or the next try ends the transaction.

        Nothing of it can become visible any more unless its commit was asked for.
        """
        from confluent_kafka import KafkaException

        try:
            self.producer.abort_transaction(ABORT_S)
        except KafkaException as error:
            log.warning("%s: aborting its Kafka transaction failed: %s", self.this.txn, error)
            return False
        return True

    def _not_applied(self, error: KafkaError) -> EpochError:
        from confluent_kafka import KafkaError

        told = self._named(error)
        found = {told.code(), *(failure.code() for _, failure in self.heard.failed)}
        if found & fenced() or (self.heard.held_back_s and KafkaError._MSG_TIMED_OUT in found):
            return self._ended(told)
        if found & _too_large():
            return self._larger(told)
        if self.heard.failed:
            return self._not_accepted(told)
        return self.this.cluster.failure("send the epoch", told)

    def _not_accepted(self, told: KafkaError) -> NotApplied:
        """The error with the reason of the first record that has its own; else with what has ended the transaction."""
        telling = (failure for failure in self.heard.failed if failure[1].code() not in _saying_nothing())
        partition, error = next(telling, (self.heard.failed[0][0], told))
        what = "the marker" if partition.startswith(f"{self.this.markers.topic}[") else "rows"
        return NotApplied(
            f"Kafka did not accept {what} of this epoch for {partition}: {error.str()}. No row is visible.",
            code=codes.KAFKA_SEND_FAILED,
            remedy=self._undoing(partition, error),
        )

    def _undoing(self, partition: str, error: KafkaError) -> str | None:
        """The remedy if the brokers refuse a record for its content; None if they do not, or if it is not known."""
        if error.code() not in (error.INVALID_RECORD, error.INVALID_TIMESTAMP):
            return None
        facts = self._facts_of(partition)
        if error.code() == error.INVALID_TIMESTAMP or not checks.is_patient(facts):
            return _by_their_time(facts)
        is_of_rows = facts.name != self.this.markers.topic
        return _without_keys(facts) if facts.is_compacted and is_of_rows else None

    def _facts_of(self, partition: str) -> TopicFacts:
        return next(each for each in self.this.facts if each and each.name == partition.partition("[")[0])

    def _larger(self, told: KafkaError) -> NotApplied:
        """The error for a record that is too large for its topic. One that the client itself refuses is a row."""
        refused = (failure for failure in self.heard.failed if failure[1].code() in _too_large())
        partition, error = next(refused, (self.this.topic, told))
        facts = self._facts_of(partition)
        limit = "segment.bytes" if error.code() == error.RECORD_LIST_TOO_LARGE else facts.limit
        return NotApplied(
            f"A record of this epoch is larger than topic {facts.name} takes now, by its {limit}: {error.str()}. No "
            "row is visible.",
            code=codes.KAFKA_SEND_FAILED,
            remedy=f"Raise `{limit}` of topic {facts.name}, at least to what it was at the vote{_and_more(facts)}. "
            "Then clear the commit task.",
        )

    def _named(self, error: KafkaError) -> KafkaError:
        """The error behind one that only says that the producer or its transaction has failed."""
        from confluent_kafka import KafkaError, KafkaException

        if error.code() in _saying_nothing():
            try:
                self.producer.begin_transaction()  # begins nothing while there is a transaction, but tells what failed
            except KafkaException as told:
                return error if told.args[0].code() == KafkaError._STATE else told.args[0]
        return error

    def _ended(self, told: KafkaError) -> NotApplied:
        if self._is_late():
            return NotApplied(
                f"The brokers ended the transaction: the sink has sent this epoch for {self._seconds():.0f} s, and "
                f"transaction_timeout is {self._timeout_s():.0f} s ({told.str()}).{self._held_back()}",
                code=codes.KAFKA_SEND_TIMEOUT,
                remedy=self._more_time(),
            )
        return NotApplied(
            f"Another process has taken over the sink's transactional id, or the brokers ended the transaction "
            f"({told.str()}).",
            code=codes.KAFKA_SEND_FENCED,
        )

    def _held_back(self) -> str:
        seconds = self.heard.held_back_s
        return f" A quota of the brokers has held the sink back, for up to {seconds:.0f} s at once." if seconds else ""

    def _more_time(self) -> str:
        if not self.heard.held_back_s:
            return codes.KAFKA_SEND_TIMEOUT.remedy
        return (
            "Raise the quota `producer_byte_rate` of the connection's user or client.id. Or raise "
            "`transaction_timeout` of the sink in the DAG, and transaction.max.timeout.ms of the brokers if it is "
            "lower. Then clear the commit task."
        )

    def _is_late(self) -> bool:
        return self._seconds() >= self._timeout_s()

    def _seconds(self) -> float:
        return time.monotonic() - self.begun

    def _timeout_s(self) -> float:
        return float(self.this.options["transaction.timeout.ms"]) / 1000

    def _committed(self, marker: MarkerRecord) -> MarkerRecord:
        """The marker that is in the topic now: this one, or the marker of another process that sent the epoch."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + COMMIT_S
        while True:
            try:
                self.producer.commit_transaction(SLICE_S)
                return marker
            except KafkaException as error:
                last = error.args[0]
                if last.txn_requires_abort() and self._abort():
                    raise self._not_applied(last) from error
                if not last.retriable() or time.monotonic() > deadline:
                    return self._landed(last, error)

    def _landed(self, last: KafkaError, cause: Exception) -> MarkerRecord:
        log.warning("%s: its commit has no clear answer (%s); reading the marker", self.this.txn, last.str())
        try:
            found, (rows, _) = self.this.markers.newest(), self.this.facts
            if rows and found:
                self.this.markers.require_shown(rows, found)
        except EpochError as error:
            raise self._unknown(last) from error
        if found is None or found.txn_id != self.this.txn:
            raise self._unknown(last) from cause
        return found

    def _unknown(self, last: KafkaError) -> OutcomeUnknown:
        if last.code() in fenced() and self._is_late():
            return OutcomeUnknown(
                f"The sink does not know whether the brokers committed this epoch to topic {self.this.topic}: it has "
                f"sent the epoch for {self._seconds():.0f} s, and transaction_timeout is {self._timeout_s():.0f} s "
                f"({last.str()}).{self._held_back()}",
                code=codes.KAFKA_COMMIT_UNKNOWN,
                remedy=self._more_time(),
            )
        return OutcomeUnknown(
            f"The sink does not know whether the brokers committed this epoch to topic {self.this.topic}: "
            f"{last.str()}.",
            code=codes.KAFKA_COMMIT_UNKNOWN,
        )


def _too_large() -> set[int]:
    """The error codes for a batch larger than max.message.bytes, and for a batch larger than segment.bytes."""
    from confluent_kafka import KafkaError

    return {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


def _saying_nothing() -> set[int]:
    """The error codes that say only that the producer, or a record's transaction or batch, has failed, but not why."""
    from confluent_kafka import KafkaError

    gave_up = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._INVALID_DIFFERENT_RECORD}
    return {KafkaError._FATAL, *gave_up}


def _by_their_time(facts: TopicFacts) -> str:
    altered = facts.altering("message.timestamp.type=LogAppendTime")
    return f"The topic refuses records by their time. Let the brokers set it: {altered}. Then clear the commit task."


def _without_keys(facts: TopicFacts) -> str:
    altered = facts.altering("cleanup.policy=delete")
    return (
        "The topic is compacted, and takes no record without a key. If rows have no key, it was not compacted at the "
        f"vote: undo that: {altered}. Else read the broker's log. Then clear the commit task."
    )


def _and_more(facts: TopicFacts) -> str:
    if not compresses(facts.compression):
        return ""
    return f" and a tenth more: the brokers compress with compression.type={facts.compression}, so a record may grow"


def _told_by(error: BaseException) -> KafkaError:
    """The client's error. An exception raised while callbacks run arrives as the cause of a SystemError.

    Sometimes the cause is missing. Then the producer has failed for good, and tells why when it is asked.

    Raises:
        SystemError: It has another cause.
    """
    from confluent_kafka import KafkaError, KafkaException

    told = error if isinstance(error, KafkaException) else error.__cause__
    if told is None:
        return KafkaError(KafkaError._FATAL)
    if not isinstance(told, KafkaException):
        raise error
    return told.args[0]
