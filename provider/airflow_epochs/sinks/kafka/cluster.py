"""The Kafka sink's questions to the brokers, through confluent-kafka: topics, their settings and ends, and clients.

If a connection fails, librdkafka tells the reason only to a callback, and the question itself times out. So the class
keeps what the callback was told, and adds it to the error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.kafka.connection import KafkaAccess
from airflow_epochs.kafka.open_transactions import OpenTransaction, Partition, open_in
from airflow_epochs.sinks.kafka.compression import growth

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

log = secrecy.logger(__name__)

SETTLE_POLL_S = 0.05
OPEN_TRANSACTION_S = 5.0
"""How long an error waits for the brokers to tell which transaction is open."""
UNREACHED_S = 3.0
"""How long an error looks for the addresses where no broker answers."""
SIZES = ("max.message.bytes", "segment.bytes")
PRODUCE, PRODUCE_OF_3_7 = 0, 10
"""The number of the Produce request, and its version since Kafka 3.7."""


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """A topic's state when it was asked for.

    Attributes:
        id: The brokers' id. A topic that is deleted and created again gets another.
        partitions: How many.
        replicas: How many the partition with the fewest has.
        allowed: What the connection's user may do with the topic ("READ", "WRITE", …); None if the brokers do not say.
        settings: The settings in force.
        servers: The connection's bootstrap servers, for commands that an error prints.
    """

    name: str
    id: str
    partitions: int
    replicas: int
    allowed: frozenset[str] | None
    settings: dict[str, str]
    servers: tuple[str, ...]

    def command(self, tool: str, *words: str) -> str:
        """A call of one of Kafka's tools for a person to run, between backquotes."""
        return f"`{tool} --bootstrap-server {','.join(self.servers)} {' '.join(words)}`"

    def altering(self, settings: str) -> str:
        """The command that alters settings of this topic. ``settings``: ``name=value``, with commas between them."""
        return self.command(
            "kafka-configs.sh", "--alter --entity-type topics --entity-name", self.name, "--add-config", settings
        )

    def raising(self, size: int) -> str:
        """The command that lets the topic take batches of ``size`` bytes."""
        return self.altering(",".join(f"{name}={size}" for name, most in self._sizes.items() if most < size))

    @property
    def limit(self) -> str:
        """The name of the setting that limits a batch."""
        return min(self._sizes, key=self._sizes.__getitem__)

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that the topic takes."""
        return self._sizes[self.limit]

    @property
    def record_bytes_max(self) -> int:
        """The largest record that the topic surely takes: a batch may grow where the brokers compress it."""
        return max(1, self.batch_bytes_max - growth(self.compression, self.batch_bytes_max))

    @property
    def _sizes(self) -> dict[str, int]:
        """The settings that limit a batch: brokers refuse one that is larger than a file of the log may be."""
        told = {name: self.settings.get(name, "") for name in SIZES}  # some kinds of brokers do not give numbers
        return {name: int(size) for name, size in told.items() if size.isdecimal() and int(size) > 0}

    @property
    def compression(self) -> str:
        """``compression.type``."""
        return self.settings.get("compression.type", "producer")

    @property
    def is_compacted(self) -> bool:
        """Whether the brokers delete older records of a key, so that every record needs one."""
        return "compact" in self.settings["cleanup.policy"]

    @property
    def insync_min(self) -> int:
        """``min.insync.replicas``."""
        return int(self.settings.get("min.insync.replicas", "1"))

    @property
    def acknowledgers(self) -> int:
        """How many replicas must have a record before it counts as written; never more than the topic has."""
        return min(self.insync_min, self.replicas)

    @property
    def elects_uncleanly(self) -> bool:
        """Whether a replica that lacks records may become the leader. Those records are then lost."""
        return self.settings.get("unclean.leader.election.enable") == "true"


def require_client() -> None:
    """Raise Refused unless confluent-kafka is installed."""
    from importlib.util import find_spec

    if find_spec("confluent_kafka") is None:
        raise Refused(
            "A KafkaSink needs the Python package confluent-kafka, which is not installed.",
            code=codes.KAFKA_CLIENT_MISSING,
        )


@dataclass
class Cluster:
    """Connections to one cluster: clients, questions, and one translation of errors."""

    access: KafkaAccess
    _heard: dict[int, str] = field(default_factory=dict)
    _admin_client: AdminClient | None = None

    def __post_init__(self) -> None:
        require_client()

    # -- clients -------------------------------------------------------------------------------------------------

    def producer(self, options: Mapping[str, Any]) -> Producer:
        """A transactional producer."""
        from confluent_kafka import Producer

        given = {**self._options(), **options}
        # The client refuses a socket timeout longer than the transaction's.
        given["socket.timeout.ms"] = min(given["socket.timeout.ms"], options["transaction.timeout.ms"])
        with self.asking("start a producer"):
            return Producer(given)

    def consumer(self, isolation: str = "read_committed") -> Consumer:
        """A consumer that reports the end of the log. It joins no group."""
        from confluent_kafka import Consumer

        options = {
            "group.id": "airflow-epochs",  # the client requires one
            "enable.auto.commit": False,
            "isolation.level": isolation,
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

    @cached_property
    def id(self) -> str | None:
        """The cluster's id; None if the brokers do not tell."""
        with self.asking("describe the cluster"):
            told = self._admin.describe_cluster(request_timeout=self.access.timeout_s).result()
        return told.cluster_id or None

    def topic(self, name: str) -> TopicFacts | None:
        """The topic as it is now; None if it does not exist."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        with self.asking(f"describe topic {name}"):
            question = self._admin.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=self.access.timeout_s
            )
            try:
                found, settings = question[name].result(), self._settings(name)
            except KafkaException as error:  # also raised by a broker that has not heard of a new topic yet
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
            servers=self.access.servers,
        )

    def waits_for_its_replicas_only(self) -> bool:
        """Whether min.insync.replicas counts no more replicas than a topic has. Brokers do so since Kafka 3.7."""
        from airflow_epochs.kafka.client import KafkaClient

        with KafkaClient(self.access) as client:
            versions = client.ask("list API versions", lambda admin: admin.api_versions())
        return bool(versions[PRODUCE][1] >= PRODUCE_OF_3_7)

    def open_transactions(
        self, topic: str, partitions: Sequence[int], owner: str | None = None
    ) -> dict[Partition, list[OpenTransaction]]:
        """Per partition, its open transactions, as ``open_in`` finds them."""
        from airflow_epochs.kafka.client import KafkaClient

        try:
            with KafkaClient(self.access, within_s=OPEN_TRANSACTION_S) as client:
                return open_in(client, [(topic, partition) for partition in partitions], owner)
        except NotApplied as error:
            log.info("the brokers do not tell which transactions are open: %s", error)
            return {}

    def held_back(self, facts: TopicFacts) -> list[int]:
        """The partitions whose readers of committed records wait for an open transaction."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        ends = self.ends(facts.name, range(facts.partitions))  # first: without a transaction, the stable end is later
        stable = self._offsets(facts.name, list(ends), OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        return [partition for partition, end in sorted(ends.items()) if stable[partition] < end]

    def uncommitted(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Message]:
        """Per partition, the records with an offset in ``[start, end)``, though their transactions may be open.

        Leaves out records that are gone, or that the brokers do not give in time. The time counts from the last record.
        """
        from confluent_kafka import TopicPartition

        consumer, ends = self.consumer("read_uncommitted"), {partition: end for partition, (_, end) in ranges.items()}
        try:
            consumer.assign([TopicPartition(topic, partition, start) for partition, (start, _) in ranges.items()])
            deadline = time.monotonic() + self.access.timeout_s
            while ends and time.monotonic() < deadline:
                message = consumer.poll(0.1)
                # An error without a topic is no partition's: the client may not look for the group's coordinator.
                if message is None or message.topic() != topic or message.partition() not in ends:
                    continue
                partition = message.partition()
                if not message.error() and message.offset() < ends[partition]:
                    yield message
                    deadline = time.monotonic() + self.access.timeout_s
                if message.error() or message.offset() + 1 >= ends[partition]:
                    del ends[partition]
                    consumer.pause([TopicPartition(topic, partition)])
        finally:
            consumer.close()

    def _settings(self, topic: str) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        question = self._admin.describe_configs([resource], request_timeout=self.access.timeout_s)
        return {name: str(entry.value) for name, entry in question[resource].result().items()}

    def create(self, topic: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> TopicFacts:
        """Create a topic, unless it exists by now, and wait until the brokers know it."""
        from confluent_kafka import KafkaError, KafkaException

        new = _new_topic(topic, partitions, replicas, settings)
        deadline = time.monotonic() + self.access.timeout_s
        with self.asking(f"create topic {topic}"):
            try:
                self._admin.create_topics([new], request_timeout=self.access.timeout_s)[topic].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        return self._settled(topic, 1, deadline)

    def require_creatable(self, topic: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> None:
        """Ask the brokers whether ``create`` would do. Creates nothing."""
        new = _new_topic(topic, partitions, replicas, settings)
        with self.asking(f"create topic {topic}"):
            self._admin.create_topics([new], request_timeout=self.access.timeout_s, validate_only=True)[topic].result()

    def require_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions until the topic has this many, and wait until the brokers know them."""
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
            except KafkaException as error:  # another process has added them
                if error.args[0].code() != KafkaError.INVALID_PARTITIONS:
                    raise
        self._settled(topic, partitions, deadline)

    def _settled(self, topic: str, partitions: int, deadline: float) -> TopicFacts:
        """The topic, once it has this many partitions and each has a leader that knows it."""
        while not (found := self.topic(topic)) or found.partitions < partitions or not self._is_led(found):
            if time.monotonic() > deadline:
                raise NotApplied(
                    f"The sink has just created topic {topic} or added partitions to it. After "
                    f"{self.access.timeout_s:g} s, not all brokers know them.",
                    code=codes.TOPIC_NOT_READY,
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
        """The first offset that the partition still has."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(topic, [partition], OffsetSpec.earliest())[partition]

    def ends(self, topic: str, partitions: range) -> dict[int, int]:
        """The high watermark of each partition. It counts open transactions too."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(topic, partitions, OffsetSpec.latest())

    def _offsets(self, topic: str, partitions: range | list[int], spec: Any, isolation: Any = None) -> dict[int, int]:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self.access.timeout_s
        with self.asking(f"list offsets of topic {topic}"):
            while True:
                try:
                    return self._offsets_now(topic, partitions, spec, isolation)
                except KafkaException as error:  # librdkafka does not retry if the broker has just started
                    if error.args[0].code() not in _of_a_new_leader() or time.monotonic() > deadline:
                        raise
                time.sleep(SETTLE_POLL_S)

    def _offsets_now(
        self, topic: str, partitions: range | list[int], spec: Any, isolation: Any = None
    ) -> dict[int, int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        question = self._admin.list_offsets(
            {TopicPartition(topic, partition): spec for partition in partitions},
            isolation_level=isolation or IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self.access.timeout_s,
        )
        return {at.partition: int(answer.result().offset) for at, answer in question.items()}

    # -- what went wrong -----------------------------------------------------------------------------------------

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Translate confluent-kafka's exceptions.

        Raises:
            Refused: The brokers refused: the login, the rights or the settings are wrong.
            NotApplied: The brokers did not answer in time.
        """
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.failure(doing, error.args[0]) from error

    def failure(self, doing: str, error: KafkaError) -> EpochError:
        """Our error for an error of confluent-kafka, with what librdkafka told the callback."""
        from confluent_kafka import KafkaError

        if self._admin_client is not None:
            self._admin_client.poll(0)  # runs the callback
        where = f"Kafka at {', '.join(self.access.servers)} (connection {self.access.conn_id!r})"
        code = error.code()
        if code in (KafkaError._INVALID_ARG, KafkaError._INVALID_TYPE):
            return Refused(
                f"confluent-kafka cannot {doing} with the settings of connection {self.access.conn_id!r} and of the "
                f"sink: {error.str()}.",
                code=codes.KAFKA_CLIENT_SETTINGS,
            )
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return Refused(
                f"{where} rejects the sink's transaction_timeout, because it is longer than transaction.max.timeout.ms "
                "of the brokers.",
                code=codes.TRANSACTION_TIMEOUT_LONG,
            )
        if login := self._heard.get(KafkaError._AUTHENTICATION):
            return Refused(
                f"{where} rejected the login of the connection's user: {login}.",
                code=codes.KAFKA_LOGIN,
            )
        if code in _rights():
            return Refused(
                f"{where} does not permit the connection's user to {doing}: {error.str()}.",
                code=codes.KAFKA_FORBIDDEN,
                remedy="Grant the user the rights that docs/kafka-sink.md lists, on the topic, the marker topic and "
                "the transactional ids. Clear the failed task.",
            )
        if code in (KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG, KafkaError.INVALID_REPLICATION_FACTOR):
            return Refused(
                f"{where} refuses to {doing} with the settings that it would have: {error.str()}.",
                code=codes.MARKER_TOPIC_SETTINGS,
                remedy="Create the marker topic by hand, with `cleanup.policy=compact`, "
                "and with replicas and `min.insync.replicas` as the sink's topic has them. Clear the failed task.",
            )
        if code == KafkaError.CONCURRENT_TRANSACTIONS:
            return NotApplied(f"{where} cannot {doing} yet: {error.str()}.", code=codes.TRANSACTION_ENDING)
        unreached = self._unreached() if code in _silence() else []
        reasons = [*sorted({*self._heard.values(), error.str()}), *(f"no connection to {each}" for each in unreached)]
        return self.access.unreachable(f"The request to {doing} failed. {where}: {'; '.join(reasons)}.", unreached)

    def _unreached(self) -> list[str]:
        """The addresses where no broker answers, found by kafka-python: librdkafka does not name all of them."""
        from airflow_epochs.kafka.client import KafkaClient

        client = KafkaClient(replace(self.access, timeout_s=min(UNREACHED_S, self.access.timeout_s)))
        try:
            with client:
                client.ask("describe the cluster", lambda admin: admin.describe_cluster())
        except (NotApplied, Refused) as error:
            log.info("a second client, which looks for addresses where no broker answers, got an error: %s", error)
        return client.unreached


def _new_topic(topic: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> NewTopic:
    from confluent_kafka.admin import NewTopic

    return NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=dict(settings))


def _silence() -> frozenset[int]:
    """The client's error codes if no broker answers."""
    from confluent_kafka import KafkaError

    return frozenset(
        {
            *(KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._MSG_TIMED_OUT),
            *(KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE),
        }
    )


def _of_a_new_leader() -> frozenset[int]:
    """Answers of a broker that no longer leads a partition, or has only just become its leader."""
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
