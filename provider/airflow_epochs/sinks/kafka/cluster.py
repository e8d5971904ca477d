"""What the Kafka sink asks the brokers, through confluent-kafka: topics, their settings and ends, clients.

librdkafka tells why a connection fails to a callback only, and the question itself just times out: so what the
callback heard is kept, and told with the question.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.kafka.connection import KafkaAccess

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

SETTLE_POLL_S = 0.05
PRODUCE, PRODUCE_OF_3_7 = 0, 10
"""The number of the request, and its version that came with Kafka 3.7."""


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """A topic as it is now.

    Attributes:
        id: Another one for a topic that is deleted and created again.
        partitions: How many.
        replicas: Of the partition that has the fewest.
        allowed: What this connection's user may do with it ("READ", "WRITE", …); None where the brokers do not say.
        settings: The settings in force.
    """

    name: str
    id: str
    partitions: int
    replicas: int
    allowed: frozenset[str] | None
    settings: dict[str, str]

    @property
    def record_bytes_max(self) -> int:
        return int(self.settings["max.message.bytes"])

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.settings["cleanup.policy"]

    @property
    def insync_min(self) -> int:
        """What ``min.insync.replicas`` says."""
        return int(self.settings.get("min.insync.replicas", "1"))

    @property
    def acknowledgers(self) -> int:
        """So many replicas have a record before it counts as written: no topic waits for more than it has."""
        return min(self.insync_min, self.replicas)

    @property
    def elects_uncleanly(self) -> bool:
        """Whether a replica that lacks records may become the leader: they are lost then."""
        return self.settings.get("unclean.leader.election.enable") == "true"


def require_client() -> None:
    """Raise Refused unless confluent-kafka is installed."""
    from importlib.util import find_spec

    if find_spec("confluent_kafka") is None:
        raise Refused(
            "A KafkaSink needs the Python package confluent-kafka, which is not installed.",
            remedy="Install it where Airflow's tasks run: pip install 'airflow-provider-epochs[kafka-sink]'.",
        )


@dataclass
class Cluster:
    """A conversation with one cluster."""

    access: KafkaAccess
    _heard: dict[int, str] = field(default_factory=dict)
    _admin_client: AdminClient | None = None

    def __post_init__(self) -> None:
        require_client()

    # -- clients -------------------------------------------------------------------------------------------------

    def producer(self, options: Mapping[str, Any]) -> Producer:
        """A transactional one."""
        from confluent_kafka import Producer

        given = {**self._options(), **options}
        # The client insists on it.
        given["socket.timeout.ms"] = min(given["socket.timeout.ms"], options["transaction.timeout.ms"])
        with self.asking("start a producer"):
            return Producer(given)

    def consumer(self) -> Consumer:
        """One that reads committed records, and says where the log ends. Joins no group."""
        from confluent_kafka import Consumer

        options = {
            "group.id": "airflow-epochs",  # the client insists on one
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
        }
        with self.asking("start a consumer"):
            return Consumer({**self._options(), **options})

    def _options(self) -> dict[str, Any]:
        return {**self.access.librdkafka_options(), "error_cb": self._hear, "log_level": 2}

    def _hear(self, error: KafkaError) -> None:
        self._heard[error.code()] = error.str()

    @property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        if self._admin_client is None:
            self._admin_client = AdminClient(self._options())
        return self._admin_client

    # -- questions -----------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicFacts | None:
        """The topic as it is now; None if there is none."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        with self.asking(f"describe topic {name}"):
            question = self._admin.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=self.access.timeout_s
            )
            try:
                found, settings = question[name].result(), self._settings(name)
            except KafkaException as error:  # also where a broker does not know yet of one that was just created
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise
        allowed = found.authorized_operations
        return TopicFacts(
            name=name,
            id=str(found.topic_id),
            partitions=len(found.partitions),
            replicas=min((len(partition.replicas) for partition in found.partitions), default=0),
            allowed=frozenset(operation.name for operation in allowed) if allowed else None,
            settings=settings,
        )

    def waits_for_its_replicas_only(self) -> bool:
        """Whether the brokers bound min.insync.replicas by a topic's number of replicas: since Kafka 3.7."""
        from airflow_epochs.kafka.client import KafkaClient

        with KafkaClient(self.access) as client:
            versions = client.ask("say its version", lambda admin: admin.api_versions())
        return bool(versions[PRODUCE][1] >= PRODUCE_OF_3_7)

    def _settings(self, topic: str) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        question = self._admin.describe_configs([resource], request_timeout=self.access.timeout_s)
        return {name: str(entry.value) for name, entry in question[resource].result().items()}

    def create(self, topic: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> TopicFacts:
        """Create a topic, unless it is there by now, and wait until it is."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=dict(settings))
        deadline = time.monotonic() + self.access.timeout_s
        with self.asking(f"create topic {topic}"):
            try:
                self._admin.create_topics([new], request_timeout=self.access.timeout_s)[topic].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        return self._settled(topic, 1, deadline)

    def require_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic until it has so many."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewPartitions

        found = self.topic(topic)
        if found and found.partitions >= partitions:
            return
        deadline = time.monotonic() + self.access.timeout_s
        with self.asking(f"add partitions to topic {topic}"):
            question = self._admin.create_partitions(
                [NewPartitions(topic, partitions)], request_timeout=self.access.timeout_s
            )
            try:
                question[topic].result()
            except KafkaException as error:  # somebody else has added them
                if error.args[0].code() != KafkaError.INVALID_PARTITIONS:
                    raise
        self._settled(topic, partitions, deadline)

    def _settled(self, topic: str, partitions: int, deadline: float) -> TopicFacts:
        """The topic, once it has so many partitions, and each a leader that knows of it."""
        while not (found := self.topic(topic)) or found.partitions < partitions or not self._is_led(found):
            if time.monotonic() > deadline:
                raise NotApplied(
                    f"Topic {topic} has just been created or extended, and the brokers do not know it yet.",
                    remedy="Clear the task once they do.",
                )
            time.sleep(SETTLE_POLL_S)
        return found

    def _is_led(self, facts: TopicFacts) -> bool:
        from confluent_kafka.admin import OffsetSpec

        try:
            with self.asking(f"list offsets of topic {facts.name}"):
                self._offsets_now(facts.name, range(facts.partitions), OffsetSpec.latest())
        except Refused:
            raise
        except NotApplied:
            return False
        return True

    def beginning(self, topic: str, partition: int) -> int:
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(topic, [partition], OffsetSpec.earliest())[partition]

    def ends(self, topic: str, partitions: range) -> dict[int, int]:
        """The high watermarks: transactions that are still open count."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(topic, partitions, OffsetSpec.latest())

    def _offsets(self, topic: str, partitions: range | list[int], spec: Any) -> dict[int, int]:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self.access.timeout_s
        with self.asking(f"list offsets of topic {topic}"):
            while True:
                try:
                    return self._offsets_now(topic, partitions, spec)
                except KafkaException as error:  # librdkafka asks a broker that has just started once
                    if error.args[0].code() not in _of_a_new_leader() or time.monotonic() > deadline:
                        raise
                time.sleep(SETTLE_POLL_S)

    def _offsets_now(self, topic: str, partitions: range | list[int], spec: Any) -> dict[int, int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        question = self._admin.list_offsets(
            {TopicPartition(topic, partition): spec for partition in partitions},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self.access.timeout_s,
        )
        return {at.partition: int(answer.result().offset) for at, answer in question.items()}

    # -- what went wrong -----------------------------------------------------------------------------------------

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Translate what confluent-kafka raises.

        Raises:
            Refused: The brokers say no: login, rights, settings.
            NotApplied: No answer in time.
        """
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.failure(doing, error.args[0]) from error

    def failure(self, doing: str, error: KafkaError) -> EpochError:
        from confluent_kafka import KafkaError

        if self._admin_client is not None:
            self._admin_client.poll(0)  # serves the callback
        where = f"Kafka at {', '.join(self.access.servers)} (connection {self.access.conn_id!r})"
        code = error.code()
        if code in (KafkaError._INVALID_ARG, KafkaError._INVALID_TYPE):
            return Refused(
                f"confluent-kafka cannot {doing} with connection {self.access.conn_id!r}: {error.str()}.",
                remedy="Correct the connection, or the options of the sink; GSSAPI needs a confluent-kafka that was "
                "built with it.",
            )
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return Refused(
                f"{where} does not accept the sink's transaction_timeout: it is more than the brokers' "
                "transaction.max.timeout.ms.",
                remedy="Lower transaction_timeout of the sink, or raise the brokers' transaction.max.timeout.ms.",
            )
        if login := self._heard.get(KafkaError._AUTHENTICATION):
            return Refused(
                f"{where} does not let its user in: {login}.",
                remedy="Check sasl.mechanism, sasl.username and sasl.password in the connection's extra.",
            )
        if code in _rights():
            return Refused(
                f"{where} does not allow its user to {doing}: {error.str()}.",
                remedy="Grant the rights that docs/kafka-sink.md lists: on the topic, the marker topic, and the "
                "transactional ids.",
            )
        reasons = "; ".join(sorted({*self._heard.values(), error.str()}))
        return NotApplied(
            f"{where} could not be asked to {doing}: {reasons}.",
            remedy="Check from the machine of this task that the brokers run and can be reached, and that "
            "security.protocol is that of their listener; then clear the task.",
        )


def _of_a_new_leader() -> frozenset[int]:
    """What a broker answers that does not lead a partition any more, or does so since a moment ago."""
    from confluent_kafka import KafkaError

    return frozenset(
        {
            *(KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH),
            *(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE),
            *(KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE),
        }
    )


def _rights() -> set[int]:
    from confluent_kafka import KafkaError

    return {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
