"""When an epoch begins, and how large it is, on a real broker: by the age of records, by bytes, by measured speed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaAdminClient

from airflow_epochs.contracts import Limits, Position
from airflow_epochs.errors import NoNewData
from airflow_epochs.model import OpenRecord, Ranges, Run, records_upper_bound
from airflow_epochs.sources.kafka.source import KafkaSource
from stack.broker import Broker
from tests.support.kafka_world import KafkaEnv, Topic
from tests.support.topic_world import TopicWorld

pytestmark = pytest.mark.jvm

NOW = datetime.now(timezone.utc)


@pytest.fixture
def world(topic_world: Callable[..., TopicWorld]) -> TopicWorld:
    """An empty topic of two partitions, and a pipeline whose clock stands still at ``NOW``."""
    return topic_world(clock=lambda: NOW)


def after(minutes: float) -> Callable[[], datetime]:
    return lambda: NOW + timedelta(minutes=minutes)


def told(opened: OpenRecord) -> list[str]:
    found: list[str] = opened.source_state["pace"]["told"]
    return found


# --- max_delay ------------------------------------------------------------------------------------------------


def test_few_records_wait_until_the_oldest_is_older_than_max_delay_and_a_rerun_takes_the_same(
    world: TopicWorld,
) -> None:
    waits = world.but(options={"min_records": 10, "max_delay": "10m"})
    waits.produce("abc", at=NOW - timedelta(minutes=1))
    with pytest.raises(NoNewData, match=r"3 offsets are there. The epoch waits for min_records \(10\), or until") as e:
        waits.opened(1)
    assert e.value.remedy and "param min_records = 1" in e.value.remedy
    with pytest.raises(NoNewData):
        waits.but(clock=after(8.9)).opened(2)
    assert waits.ledger.newest_complete() == 0 and not waits.ledger.open_record(1, 1)
    opened = waits.but(clock=after(9.1)).opened(3)
    assert records_upper_bound(opened.ranges) == 3
    assert told(opened) == [
        f"3 offsets, fewer than min_records (10): the first one of {world.topic()}[0] is older than max_delay (600 s)"
    ]
    waits.produce("defghijklm")
    assert waits.run(3) is None and waits.shown("lake") == "abc", "the run goes on with the ranges that it opened"
    assert waits.run(4) is None and waits.shown("lake") == "abcdefghijklm", "ten records need not wait"
    assert "pace" not in waits.completed(2).source_state


@pytest.mark.parametrize("read", [timedelta(minutes=50), timedelta(seconds=-10)])
def test_an_old_record_is_not_hidden_by_a_newer_one_that_was_read_before_it(world: TopicWorld, read: timedelta) -> None:
    """The brokers find the one that was read, because they search the log from its beginning."""
    world.produce("a", partitions=[0], at=NOW + read)
    assert world.run(1) is None
    waits = world.but(options={"min_records": 10, "max_delay": "1h"})
    waits.produce("b", partitions=[0], at=NOW - timedelta(minutes=59))
    with pytest.raises(NoNewData, match="1 offsets are there"):
        waits.opened(2)
    opened = waits.but(clock=after(2)).opened(3)
    assert "is older than max_delay (3600 s)" in told(opened)[0]


def test_records_with_times_to_come_wait_since_the_last_epoch_ended(world: TopicWorld) -> None:
    world.produce("ab")
    assert world.run(1) is None
    waits = world.but(options={"min_records": 10, "max_delay": 600})
    waits.produce("c", at=NOW + timedelta(minutes=50))  # brokers refuse more than an hour
    with pytest.raises(NoNewData, match="1 offsets are there"):
        waits.but(clock=after(9.9)).opened(2)
    opened = waits.but(clock=after(10.1)).opened(3)
    assert records_upper_bound(opened.ranges) == 1
    assert "has a time to come, and the last epoch ended long ago" in told(opened)[0]


def test_after_a_quiet_hour_fresh_records_still_wait_for_others(world: TopicWorld) -> None:
    world.produce("ab")
    assert world.run(1) is None
    waits = world.but(options={"min_records": 10, "max_delay": 600}, clock=after(50))
    waits.produce("c", at=NOW + timedelta(minutes=50))
    with pytest.raises(NoNewData, match="1 offsets are there"):
        waits.opened(2)
    assert records_upper_bound(waits.opened(3, min_records=1).ranges) == 1, "the run's own param goes first"


# --- max_bytes ------------------------------------------------------------------------------------------------


def bytes_read(bootstrap: str, ranges: Ranges) -> list[int]:
    """Per range, the bytes of the values that a stranger reads there."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "stranger"})
    found = []
    for topic, r in ((topic, r) for topic, of in ranges.items() for r in of):
        consumer.assign([TopicPartition(topic, r.partition, r.start)])
        values = consumer.consume(r.end - r.start, 20) if r.end > r.start else []
        found.append(sum(len(each.value() or b"") for each in values))
    consumer.close()
    return found


def test_an_epoch_has_about_max_bytes_in_fair_shares_and_large_records_do_not_stop_it(
    broker: Broker, request: pytest.FixtureRequest
) -> None:
    env = KafkaEnv(**{"bootstrap.servers": broker.bootstrap})
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        topic = Topic(f"bytes-{abs(hash(request.node.name)):x}", admin, broker.bootstrap).create(3)
    topic.produce(300, size=1_000)
    topic.produce(0, 3_000, size=100)
    source = KafkaSource([topic.name], max_wait=0, max_bytes="64KiB")
    planned = source.plan(None, Limits(), env)
    assert planned
    large, small, empty = bytes_read(broker.bootstrap, planned.ranges)
    # what lies on the disk is more than the values: 70 bytes of each batch, and some of each record
    assert 28_000 <= large <= 32_768 and 26_000 <= small <= 32_768 and empty == 0
    [why] = planned.state["pace"]["told"]
    assert why.startswith("about 6") and why.endswith("on the brokers' disks (max_bytes 65,536)")
    tiny = source.plan(Position(ranges=planned.ranges, state=planned.state), Limits(max_bytes=1), env)
    assert tiny and [r.end - r.start for r in tiny.ranges[topic.name]] == [1, 1, 0]


# --- target_duration ------------------------------------------------------------------------------------------


def measured_run(world: TopicWorld, number: int, seconds: float, max_records: int | None = None) -> int:
    """A run whose stage is said to have taken so long; the offsets that its epoch has read."""
    coordinator, run = world.task(), Run("dag", f"run {number}")
    opened = coordinator.open(run, Limits(max_records=max_records))
    report = coordinator.stage(run).stage
    coordinator.vote(run, report)
    for sink in world.sinks:
        coordinator.commit(run, sink)
    coordinator.complete(run, {"seconds": {"stage": seconds}})
    return records_upper_bound(opened.ranges)


def test_the_size_of_epochs_follows_the_measured_speed_within_its_bounds_and_every_record_is_read(
    world: TopicWorld,
) -> None:
    paced = world.but(options={"target_duration": "10 s"})
    paced.produce("x" * 14_000)
    taken = [measured_run(paced, 1, 2.5, 1_200), measured_run(paced, 2, 5), measured_run(paced, 3, 10)]
    assert taken == [1_200, 2_400, 4_800], "480 offsets a second, but from one epoch to the next only twice as many"
    assert measured_run(paced, 4, 3_600) == 4_800
    opened = paced.opened(5)
    assert records_upper_bound(opened.ranges) == 14_000 - sum(taken) - 4_800
    assert opened.source_state["pace"] == {
        "size": 4_800,
        "told": [
            "at most 4,800 offsets: the median of epochs 1, 2, 3, 4 is 480.0 offsets a second, and the target is 10 s"
        ],
    }, "one epoch that took an hour changes nothing"
    assert paced.run(5) is None
    assert paced.shown("lake") == "x" * 14_000
