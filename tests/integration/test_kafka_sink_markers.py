"""The marker topic on a real broker: shared by all sinks, and none can hide or hold up the marker of another."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka.record.default_records import DefaultRecordBatchBuilder

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, OutcomeUnknown
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.model import Marker
from airflow_epochs.sinks.kafka import marker_partitions
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.marker_partitions import DIRECTORY, Assignments
from stack.broker import Broker
from tests.support.kafka_sink_world import MARKERS, Feed, a_feed, create, rows, seen_by_kafka_python, visible, world_at
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm

IMPATIENT = {"socket.timeout.ms": 1500}


def cluster(broker: Broker) -> Cluster:
    return Cluster(read_connection(world_at(broker.bootstrap).connection("kafka_default")))


def assignments(broker: Broker, topic: str = MARKERS) -> Assignments:
    return Assignments(cluster=cluster(broker), topic=topic)


def partition_of(broker: Broker, feed: Feed) -> int:
    found = assignments(broker, feed.sink.marker_topic).find(f"{feed.pipeline}/events")
    assert found
    return found.partition


def shown(feed: Feed) -> Marker:
    assert feed.shown
    return Marker.of(feed.shown)


@contextmanager
def hanging(broker: Broker, partition: int) -> Iterator[None]:
    """Somebody's transaction is open in a partition of the marker topic."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(MARKERS, key=b"another", value=b"{}", partition=partition)
    assert producer.flush(10) == 0
    try:
        yield
    finally:
        producer.abort_transaction(10)


@contextmanager
def unverified(admin: AdminClient) -> Iterator[None]:
    """The broker takes records of a transaction that it knows nothing of, as all brokers before Kafka 3.6."""
    name = "transaction.partition.verification.enable"
    change_broker(admin, ConfigEntry(name, "false", incremental_operation=AlterConfigOpType.SET))
    try:
        yield
    finally:
        change_broker(admin, ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE))


def change_broker(admin: AdminClient, entry: ConfigEntry) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def append_open_transaction(broker: Broker, topic: str, partition: int) -> None:
    """What a producer's late request leaves behind: a record of a transaction that no coordinator knows (KIP-664)."""
    batch = DefaultRecordBatchBuilder(2, 0, True, 999_999, 0, 0, 1 << 16)
    batch.append(0, int(time.time() * 1000), b"late", b"{}", [])
    host, port = broker.bootstrap.split(":")
    request = _produce_request(topic, partition, bytes(batch.build()))

    def appended() -> bool:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb")
            body = answer.read(*struct.unpack(">i", answer.read(4)))
        (error,) = struct.unpack_from(">h", body, 4 + 4 + 2 + len(topic) + 4 + 4)
        return bool(error == 0)

    wait_until(appended)  # the broker may not have heard yet that it need not verify


def _produce_request(topic: str, partition: int, records: bytes) -> bytes:
    """Version 7 of Kafka's Produce request, for one batch."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    head = struct.pack(">hhi", 0, 7, 1) + text("test") + text("a transaction")
    where = struct.pack(">hii", -1, 10_000, 1) + text(topic) + struct.pack(">ii", 1, partition)
    return head + where + struct.pack(">i", len(records)) + records


def test_pipelines_share_the_marker_topic_and_none_waits_for_anothers_transaction(
    feed: Feed, broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    unread = create(admin, f"out-{uuid.uuid4().hex[:8]}")
    other = a_feed(broker.bootstrap, unread, f"other-{feed.pipeline}", tmp_path)
    for each in (feed, other):
        each.run(rows("a"))
    assert partition_of(broker, feed) != partition_of(broker, other)
    with hanging(broker, partition_of(broker, other)), hanging(broker, DIRECTORY):
        feed.world = world_at(broker.bootstrap, **IMPATIENT)
        feed.run(rows("b"))
        assert feed.marker() == shown(feed)
    assert other.marker() == shown(other)
    assert visible(broker.bootstrap, feed.sink.topic) == ["a", "b"]


def test_a_transaction_that_is_open_in_a_sinks_own_partition_is_waited_for(feed: Feed, broker: Broker) -> None:
    feed.run(rows("a"))
    feed.world = world_at(broker.bootstrap, **IMPATIENT)
    with hanging(broker, partition_of(broker, feed)):
        with pytest.raises(NotApplied, match=r"of producer '.+', id \d+, open since .+ is still open") as held:
            feed.marker()
    assert "transactions abort" not in held.value.remedy, "its coordinator ends it"
    assert feed.marker() == shown(feed)


def test_a_transaction_that_no_coordinator_knows_is_ended_by_the_command_of_the_error(
    feed: Feed, broker: Broker, admin: AdminClient
) -> None:
    feed.run(rows("a"))
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("b"))
    with unverified(admin):
        append_open_transaction(broker, MARKERS, partition_of(broker, feed))
    feed.world = world_at(broker.bootstrap, **IMPATIENT)
    with pytest.raises(OutcomeUnknown, match="the transaction of producer id 999999 is still open there") as held:
        feed.commit(attempt, staged)
    assert held.value.code is codes.SINK_UNANSWERED
    _, *command = held.value.remedy.split("End it then: `")[1].split("`")[0].split()
    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=60)
    feed.commit(attempt, staged)
    assert feed.marker() == shown(feed)
    assert visible(broker.bootstrap, feed.sink.topic) == ["a", "b"]


def test_a_marker_is_found_behind_any_number_of_other_records(feed: Feed, broker: Broker) -> None:
    feed.run(rows("a"))
    crowd = Producer({"bootstrap.servers": broker.bootstrap})
    place = partition_of(broker, feed)
    for number in range(6_000):
        crowd.produce(MARKERS, key=b"%d" % number, value=b"{}", partition=place)
    assert crowd.flush(20) == 0
    assert feed.marker() == shown(feed)


def test_the_marker_topic_is_created_to_be_kept(feed: Feed, admin: AdminClient) -> None:
    feed.run(rows())
    resource = ConfigResource(ResourceType.TOPIC, MARKERS)
    assert admin.describe_configs([resource])[resource].result()["cleanup.policy"].value == "compact"


# --- assignments ---------------------------------------------------------------------------------------------------


def test_a_marker_topic_made_by_hand_gets_a_partition_more_for_every_sink(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path
) -> None:
    made = create(admin, f"m-{pipeline}", cleanup_policy="compact")
    for number in range(1, 4):
        topic = create(admin, f"out-{number}-{pipeline}")
        feed = a_feed(broker.bootstrap, topic, f"{pipeline}-{number}", tmp_path, marker_topic=made)
        for _ in range(2):
            feed.run(rows("a"))
        assert partition_of(broker, feed) == number
    assert len(admin.list_topics(made, timeout=10).topics[made].partitions) == 4


def test_claims_that_are_made_at_once_are_for_different_partitions_and_last(
    broker: Broker, admin: AdminClient, pipeline: str
) -> None:
    made = create(admin, f"m-{pipeline}", 2, cleanup_policy="compact")
    keys = [f"{pipeline}/{name}" for name in ("a", "b", "c", "a")]
    with ThreadPoolExecutor(len(keys)) as pool:
        made_at_once = list(pool.map(lambda key: assignments(broker, made).assign(key), keys))
    assert made_at_once[0] == made_at_once[3]
    assert sorted({assigned.partition for assigned in made_at_once}) == [1, 2, 3]
    assert [assignments(broker, made).assign(key) for key in keys] == [
        assignments(broker, made).find(key) for key in keys
    ]
    assert made_at_once == [assignments(broker, made).find(key) for key in keys]


@pytest.mark.parametrize("sinks", [8, pytest.param(20, marks=pytest.mark.long)])
def test_sinks_that_vote_for_the_first_time_at_once_all_get_a_partition_of_a_new_marker_topic(
    broker: Broker, topic: str, pipeline: str, tmp_path: Path, sinks: int
) -> None:
    made = f"m-{pipeline}"
    feeds = [a_feed(broker.bootstrap, topic, f"{pipeline}-{n}", tmp_path, marker_topic=made) for n in range(sinks)]
    with ThreadPoolExecutor(sinks) as pool:
        list(pool.map(lambda feed: feed.run(rows(feed.pipeline)), feeds))
    assert sorted(value or "" for value in visible(broker.bootstrap, topic)) == sorted(feed.pipeline for feed in feeds)
    assigned = {
        str(key): json.loads(value or "")["partition"] for key, value, _ in seen_by_kafka_python(broker.bootstrap, made)
    }
    assert sorted(assigned) == sorted(f"{feed.pipeline}/events" for feed in feeds)
    assert sorted(assigned.values()) == list(range(1, sinks + 1))


@pytest.mark.long
def test_a_claim_that_others_overtake_all_the_time_ends_with_an_error_and_succeeds_when_it_is_tried_again(
    broker: Broker, admin: AdminClient, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(admin, f"m-{pipeline}", 2, cleanup_policy="compact")

    def overtaken(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED))

    with monkeypatch.context() as others:
        others.setattr(marker_partitions, "ASSIGNING_S", 0)
        others.setattr(Assignments, "_assigned", overtaken)
        with pytest.raises(
            NotApplied, match=f"Sink {pipeline}/a got no partition of topic {made} in 0 s: other"
        ) as told:
            assignments(broker, made).assign(f"{pipeline}/a")
    assert told.value.code is codes.TOPIC_NOT_READY
    assert assignments(broker, made).assign(f"{pipeline}/a").partition == 1


@pytest.mark.long
def test_a_first_claim_is_not_taken_for_records_of_strangers_by_another_that_is_under_way(
    broker: Broker, admin: AdminClient, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, require_empty = create(admin, f"m-{pipeline}", 2, cleanup_policy="compact"), Assignments._require_empty

    def after_another(self: Assignments) -> None:
        monkeypatch.setattr(Assignments, "_require_empty", require_empty)
        assert assignments(broker, made).assign(f"{pipeline}/a").partition == 1
        require_empty(self)

    monkeypatch.setattr(Assignments, "_require_empty", after_another)
    assert assignments(broker, made).assign(f"{pipeline}/b").partition == 2
    assert assignments(broker, made).find(f"{pipeline}/a") == assignments(broker, made).assign(f"{pipeline}/a")


def test_a_claim_that_was_left_half_made_ends_with_the_next_one(
    broker: Broker, admin: AdminClient, pipeline: str
) -> None:
    made = create(admin, f"m-{pipeline}", 3, cleanup_policy="compact")
    half = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": made})
    half.init_transactions(10)
    half.begin_transaction()
    half.produce(made, key=f"{pipeline}/a", value=b'{"partition": 1, "format": 1}', partition=DIRECTORY)
    assert half.flush(10) == 0
    assert assignments(broker, made).assign(f"{pipeline}/b").partition == 1
    assert assignments(broker, made).find(f"{pipeline}/a") is None
    assert assignments(broker, made).assign(f"{pipeline}/a").partition == 2
