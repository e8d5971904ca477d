"""A world for tests of the Kafka sink: a topic with a sink, epochs one after the other, and two readers."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import uuid
from dataclasses import asdict, dataclass, field
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_epochs import KafkaSink
from airflow_epochs.contracts import Connection, SinkAttempt
from airflow_epochs.errors import EpochError
from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, TransactionId, Vote
from airflow_epochs.sinks.kafka.rows import HEADER
from tests.support.delta_world import attempt_of, promised, stage_with_deltalake
from tests.support.environment import Environment
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

MARKERS = "markers"
"""The marker topic of all tests that have no reason for one of their own."""
COMMITTED, FAILED = 0, 3
"""Exit codes of ``commit_in_process``."""

Seen = list[tuple[str | None, str | None, str]]
"""Per record its key, its value, and our header."""


def rows(*values: str, partitions: list[int] | None = None) -> pa.Table:
    columns: dict[str, Any] = {"value": pa.array(values, pa.string())}
    if partitions is not None:
        columns["partition"] = pa.array(partitions, pa.int32())
    return pa.table(columns)


def world_at(bootstrap: str, **extra: object) -> Environment:
    settings = {"bootstrap.servers": bootstrap, **extra}
    return Environment({"kafka_default": Connection(conn_id="kafka_default", conn_type="kafka", extra=settings)})


@dataclass
class Feed:
    """A sink and the epochs that go into it, one after the other."""

    sink: KafkaSink
    world: Environment
    pipeline: str = "orders"
    shown: TransactionId | None = None
    epoch: int = field(default=0)

    def attempt(self) -> SinkAttempt:
        """A new attempt at the next epoch."""
        txn = TransactionId(self.pipeline, self.epoch + 1, 1, uuid.uuid4().hex)
        return attempt_of(txn, self.shown)

    def vote(self, attempt: SinkAttempt, data: pa.Table) -> Vote:
        plan = self.sink.plan_stage(attempt, uuid.uuid4().hex, self.world)
        return self.sink.vote(attempt, stage_with_deltalake(plan, data), self.world)

    def staged(self, attempt: SinkAttempt, data: pa.Table) -> Staged:
        return promised(self.vote(attempt, data))

    def commit(self, attempt: SinkAttempt, staged: Staged) -> Receipt:
        receipt = self.sink.commit(attempt, staged, self.world)
        self.shown, self.epoch = attempt.txn, attempt.txn.epoch
        return receipt

    def run(self, data: pa.Table) -> Receipt:
        attempt = self.attempt()
        return self.commit(attempt, self.staged(attempt, data))

    def marker(self) -> Marker | None:
        return self.sink.last_committed(self.pipeline, self.world)


def commit_in_process(
    spec: JsonDict, bootstrap: str, txn: str, previous: str | None, staged: JsonDict, phase: str, number: int
) -> None:
    """Commit; at ``phase``, send the signal ``number`` to this process. Exits with ``FAILED`` if the commit failed."""
    world = world_at(bootstrap)
    world.at[phase] = lambda: os.kill(os.getpid(), number)
    attempt = attempt_of(TransactionId.parse(txn), TransactionId.parse(previous) if previous else None)
    try:
        receipt = KafkaSink.from_spec(spec).commit(attempt, Staged(**staged), world)
    except EpochError:
        os._exit(FAILED)
    receipt_at(staged["place"]).write_text(json.dumps(asdict(receipt)))


def commit_and_weigh(
    spec: JsonDict, bootstrap: str, txn: str, previous: str | None, staged: JsonDict, result: str
) -> None:
    """Commit, and write the most memory that this process had for itself, in MB. For one that does nothing else."""
    commit_in_process(spec, bootstrap, txn, previous, staged, "never", 0)
    # Not ru_maxrss, which a process inherits from the one that started it. And without the pages of libraries' files:
    # how many the kernel maps at once depends on how the files came into its cache (70 MB more or less).
    told = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    Path(result).write_text(str((int(told["VmHWM"].split()[0]) - int(told["RssFile"].split()[0])) / 1024))


def memory_to_commit(feed: Feed, bootstrap: str, attempt: SinkAttempt, staged: Staged) -> float:
    """The most memory of its own, in MB, that a process needed to commit an epoch."""
    result = Path(f"{staged.place}.peak")
    previous = str(attempt.previous) if attempt.previous else None
    args = (feed.sink.spec(), bootstrap, str(attempt.txn), previous, asdict(staged), str(result))
    process = multiprocessing.get_context("spawn").Process(target=commit_and_weigh, args=args)
    process.start()
    process.join()
    assert process.exitcode == COMMITTED
    feed.shown, feed.epoch = attempt.txn, attempt.txn.epoch
    return float(result.read_text())


def receipt_at(place: str) -> Path:
    """Where ``commit_in_process`` leaves its receipt."""
    return Path(f"{place}.receipt")


def a_feed(bootstrap: str, topic: str, pipeline: str, folder: Path, **options: Any) -> Feed:
    """A sink for the topic, at its first epoch."""
    given = {"staging": str(folder / "staging"), "marker_topic": MARKERS, **options}
    return Feed(KafkaSink("events", topic, **given), world_at(bootstrap), pipeline)


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> str:
    """A topic of its own for a test."""
    from confluent_kafka.admin import NewTopic

    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result()
    wait_until(lambda: name in admin.list_topics(timeout=5).topics)
    wait_until(lambda: _is_led(admin, name, partitions))
    return name


def _is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
    return all(answer.exception() is None for answer in admin.list_offsets(latest, request_timeout=5).values())


def set_config(admin: AdminClient, topic: str, name: str, value: str) -> None:
    """Change a setting of a topic, and wait until it is in force."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()

    def now() -> str:
        return str(admin.describe_configs([resource])[resource].result()[name].value)

    wait_until(lambda: now() == value)


def visible(bootstrap: str, topic: str) -> list[str | None]:
    """The values in partition 0 for readers of committed records, by two clients that share no code.

    Brokers answer a commit before its markers are in the partitions (KIP-98): asked at once, the second client may see
    more than the first.
    """
    seen: list[Any] = []

    def agree() -> bool:
        seen[:] = seen_by_confluent(bootstrap, topic)
        return seen == seen_by_kafka_python(bootstrap, topic)

    wait_until(agree, what="both clients see the same")
    return values(seen)


def committing(
    feed: Feed, bootstrap: str, attempt: SinkAttempt, staged: Staged, phase: str, number: signal.Signals
) -> SpawnProcess:
    """Commit in a process of its own that gets a signal at a phase."""
    previous = str(attempt.previous) if attempt.previous else None
    args = (feed.sink.spec(), bootstrap, str(attempt.txn), previous, asdict(staged), phase, int(number))
    process = multiprocessing.get_context("spawn").Process(target=commit_in_process, args=args)
    process.start()
    return process


# --- readers --------------------------------------------------------------------------------------------------


def seen_by_confluent(bootstrap: str, topic: str, partition: int = 0, isolation: str = "read_committed") -> Seen:
    """What a consumer of confluent-kafka has of a partition."""
    messages = consumed(bootstrap, topic, partition, isolation)
    return [(_text(each.key()), _text(each.value()), _header(each.headers())) for each in messages]


def consumed(bootstrap: str, topic: str, partition: int = 0, isolation: str = "read_committed") -> list[Message]:
    """The messages that a consumer of confluent-kafka has of a partition."""
    from confluent_kafka import Consumer, TopicPartition

    options = {"bootstrap.servers": bootstrap, "group.id": "test", "isolation.level": isolation}
    consumer = Consumer({**options, "enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10})
    consumer.assign([TopicPartition(topic, partition, 0)])
    seen: list[Message] = []
    while (message := consumer.poll(20)) is not None:
        if message.error():
            break  # the end
        seen.append(message)
    consumer.close()
    return seen


def seen_by_kafka_python(bootstrap: str, topic: str, partition: int = 0) -> Seen:
    """What a consumer of kafka-python has of a partition that reads committed records."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False, group_id=None
    )
    tp = TopicPartition(topic, partition)
    consumer.assign([tp])
    consumer.seek_to_beginning(tp)
    end, seen = consumer.end_offsets([tp])[tp], []
    while consumer.position(tp) < end:
        for batch in consumer.poll(timeout_ms=200).values():
            seen += [(_text(m.key), _text(m.value), _header(m.headers)) for m in batch]
    consumer.close()
    return seen


def settled_end(admin: AdminClient, topic: str, partition: int = 0) -> int:
    """The end of a partition, once no transaction is open there.

    The brokers answer a commit before they have written that it is one, and only then readers see it.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    def end(level: IsolationLevel) -> int:
        at = TopicPartition(topic, partition)
        question = admin.list_offsets({at: OffsetSpec.latest()}, isolation_level=level, request_timeout=20)
        return int(question[at].result().offset)

    wait_until(lambda: end(IsolationLevel.READ_COMMITTED) == end(IsolationLevel.READ_UNCOMMITTED))
    return end(IsolationLevel.READ_UNCOMMITTED)


def values(seen: Seen) -> list[str | None]:
    return [value for _, value, _ in seen]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _header(headers: Any) -> str:
    (value,) = [value for name, value in headers or [] if name == HEADER] or [b""]
    return str(value.decode())
