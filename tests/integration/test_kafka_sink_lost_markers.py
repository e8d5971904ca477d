"""A sink whose markers are lost sends nothing again: it stops, and says how to look and what to put back."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_epochs.errors import Corrupt
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.marker_partitions import Assignments
from stack.broker import Broker
from tests.support.kafka_sink_world import Feed, a_feed, create, rows, set_config, visible, world_at
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm

Loss = Callable[[Feed, AdminClient, Broker], None]


@pytest.fixture
def feed(broker: Broker, topic: str, tmp_path: Path) -> Feed:
    """With a marker topic of its own, which may be lost."""
    name = uuid.uuid4().hex[:8]
    return a_feed(broker.bootstrap, topic, f"orders-{name}", tmp_path, marker_topic=f"m-{name}")


def deleted(feed: Feed, admin: AdminClient, broker: Broker) -> None:
    gone = feed.sink.marker_topic
    admin.delete_topics([gone])[gone].result()
    wait_until(lambda: gone not in admin.list_topics(timeout=5).topics)


def recreated(feed: Feed, admin: AdminClient, broker: Broker) -> None:
    deleted(feed, admin, broker)
    create(admin, feed.sink.marker_topic, 2, cleanup_policy="compact")


def recreated_by_another_sink(feed: Feed, admin: AdminClient, broker: Broker) -> None:
    deleted(feed, admin, broker)
    other = create(admin, f"out-{uuid.uuid4().hex[:8]}")
    place = Path(feed.sink.staging).parent / "other"
    a_feed(broker.bootstrap, other, f"other-{feed.pipeline}", place, marker_topic=feed.sink.marker_topic).run(rows("x"))


def records_deleted(feed: Feed, admin: AdminClient, broker: Broker) -> None:
    """As by kafka-delete-records or a retention, which brokers allow after the cleanup.policy was changed."""
    place = TopicPartition(feed.sink.marker_topic, own_partition(feed, broker), -1)
    set_config(admin, feed.sink.marker_topic, "cleanup.policy", "delete")
    wait_until(lambda: all(done.exception() is None for done in admin.delete_records([place]).values()))
    set_config(admin, feed.sink.marker_topic, "cleanup.policy", "compact")


def tombstone(feed: Feed, admin: AdminClient, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(
        feed.sink.marker_topic, key=f"{feed.pipeline}/events", value=None, partition=own_partition(feed, broker)
    )
    assert producer.flush(10) == 0


def own_partition(feed: Feed, broker: Broker) -> int:
    cluster = Cluster(read_connection(world_at(broker.bootstrap).connection("kafka_default")))
    found = Assignments(cluster=cluster, topic=feed.sink.marker_topic).find(f"{feed.pipeline}/events")
    assert found
    return found.partition


LOSSES = [deleted, recreated, recreated_by_another_sink, records_deleted, tombstone]


@pytest.mark.few(2)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: str(loss.__name__))
def test_a_first_epoch_whose_marker_is_lost_before_its_receipt_is_not_sent_again(
    feed: Feed, admin: AdminClient, broker: Broker, topic: str, loss: Loss
) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b", "c", "d"))
    feed.sink.commit(attempt, staged, feed.world)
    loss(feed, admin, broker)
    with pytest.raises(Corrupt):
        feed.sink.commit(attempt, staged, world_at(broker.bootstrap))
    assert visible(broker.bootstrap, topic) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("loss", [deleted, recreated_by_another_sink], ids=lambda loss: str(loss.__name__))
def test_a_first_epoch_that_version_0_1_voted_for_is_not_sent_again_either(
    feed: Feed, admin: AdminClient, broker: Broker, topic: str, loss: Loss
) -> None:
    attempt = feed.attempt()
    staged = replace(feed.staged(attempt, rows("a", "b")), detail={})
    feed.sink.commit(attempt, staged, feed.world)
    loss(feed, admin, broker)
    with pytest.raises(Corrupt, match="cannot tell whether"):
        feed.sink.commit(attempt, staged, world_at(broker.bootstrap))
    assert visible(broker.bootstrap, topic) == ["a", "b"]
