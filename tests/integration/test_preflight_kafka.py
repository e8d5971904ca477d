"""What ``open`` finds out about a sink's topics before Spark runs; each remedy is followed as it is told."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from stack.broker import Broker
from tests.support.kafka_sink_world import Feed, a_feed, create, rows, set_config, visible
from tests.support.kafka_tools import in_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm
NewFeed = Callable[[str], Feed]


@pytest.fixture
def new_feed(broker: Broker, tmp_path: Path) -> NewFeed:
    name = uuid.uuid4().hex[:8]
    return lambda topic: a_feed(broker.bootstrap, topic, f"orders-{name}", tmp_path, marker_topic=f"m-{name}")


def ready(feed: Feed) -> None:
    feed.sink.require_ready(feed.pipeline, feed.shown, feed.world)


def is_ready(feed: Feed) -> bool:
    try:
        ready(feed)
    except Refused:
        return False
    return True


def refusal(feed: Feed) -> Refused:
    with pytest.raises(Refused) as refused:
        ready(feed)
    assert refused.value.sink == feed.sink.name
    return refused.value


def obey(refused: Refused, admin: AdminClient, feed: Feed) -> None:
    """Set what the remedy tells kafka-configs.sh to set."""
    *_, topic, _, settings = in_text(refused.remedy, "kafka-configs.sh")
    for setting in settings.split(","):
        set_config(admin, topic, *setting.split("="))
    wait_until(lambda: is_ready(feed))


def test_a_topic_that_does_not_exist_is_missed_and_an_epoch_goes_through_once_it_does(
    new_feed: NewFeed, admin: AdminClient, broker: Broker
) -> None:
    feed = new_feed(f"out-{uuid.uuid4().hex[:8]}")
    missing = refusal(feed)
    assert missing.code is codes.TOPIC_MISSING and feed.sink.topic in missing.what
    create(admin, feed.sink.topic)
    ready(feed)
    feed.run(rows("a"))
    assert visible(broker.bootstrap, feed.sink.topic) == ["a"]


def test_a_topic_that_refuses_records_of_a_moment_ago_is_refused_until_it_is_altered(
    new_feed: NewFeed, admin: AdminClient
) -> None:
    feed = new_feed(create(admin, f"out-{uuid.uuid4().hex[:8]}", message_timestamp_before_max_ms="1"))
    refused = refusal(feed)
    assert refused.code is codes.TOPIC_SETTINGS
    obey(refused, admin, feed)


def test_a_marker_topic_whose_cleanup_policy_deletes_is_refused_until_it_is_altered(
    new_feed: NewFeed, admin: AdminClient, broker: Broker
) -> None:
    feed = new_feed(create(admin, f"out-{uuid.uuid4().hex[:8]}"))
    create(admin, feed.sink.marker_topic, 2, cleanup_policy="delete")
    refused = refusal(feed)
    assert refused.code is codes.MARKER_TOPIC_SETTINGS and "cleanup.policy=delete" in refused.what
    obey(refused, admin, feed)
    feed.run(rows("a"))
    assert visible(broker.bootstrap, feed.sink.topic) == ["a"]


def test_the_look_creates_no_topic_and_a_marker_topic_that_is_gone_is_missed(
    new_feed: NewFeed, admin: AdminClient
) -> None:
    feed = new_feed(create(admin, f"out-{uuid.uuid4().hex[:8]}"))
    ready(feed)
    assert feed.sink.marker_topic not in admin.list_topics(timeout=5).topics
    feed.run(rows("a"))
    ready(feed)
    gone = feed.sink.marker_topic
    admin.delete_topics([gone])[gone].result()
    wait_until(lambda: gone not in admin.list_topics(timeout=5).topics)
    assert refusal(feed).code is codes.MARKER_TOPIC_GONE
