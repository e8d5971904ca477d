"""That Spark, given a KafkaSource's options, reads exactly the planned ranges."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from airflow_epochs import codes
from airflow_epochs.contracts import Limits, Position
from airflow_epochs.model import OffsetRange, Ranges
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.spark.driver.failures import of_spark
from stack.broker import Broker
from tests.support.kafka_sink_world import set_config
from tests.support.kafka_world import KafkaEnv, Topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


@pytest.fixture
def topic(broker: Broker) -> Iterator[Topic]:
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        yield Topic(f"t-{uuid.uuid4().hex[:8]}", admin, broker.bootstrap).create(partitions=2)


@pytest.fixture
def env(broker: Broker) -> KafkaEnv:
    return KafkaEnv(**{"bootstrap.servers": broker.bootstrap})


def offsets(session: SparkSession, source: KafkaSource, ranges: Ranges, env: KafkaEnv) -> list[tuple[int, int]]:
    rows = session.read.format("kafka").options(**source.spark_read(ranges, env).options).load().collect()
    return sorted((row["partition"], row["offset"]) for row in rows)


def test_epochs_across_transactions_read_every_committed_record_once(
    topic: Topic, env: KafkaEnv, other_session: SparkSession
) -> None:
    source = KafkaSource([topic.name], max_wait=0, max_records=4)
    topic.produce(2, 1)
    topic.begin_transaction(3).abort_transaction(20)  # offsets 2 to 4, marker 5
    wait_until(lambda: _end(source, env, max_records=100) == 6)  # the broker answers before it writes the marker
    topic.produce(1)  # 6
    topic.begin_transaction(2).commit_transaction(20)  # 7, 8, marker 9
    open_one = topic.begin_transaction(2)  # 10, 11
    topic.produce(0, 2)
    wait_until(lambda: _end(source, env, max_records=100) == 10)
    read, position = [], None
    while epoch := source.plan(position, Limits(), env):
        source.check(epoch.ranges, epoch.state, env)
        read += offsets(other_session, source, epoch.ranges, env)
        position = Position(ranges=epoch.ranges, state=epoch.state)
    assert sorted(read) == [(0, 0), (0, 1), (0, 6), (0, 7), (0, 8), (1, 0), (1, 1), (1, 2)]
    open_one.abort_transaction(20)


def _end(source: KafkaSource, env: KafkaEnv, max_records: int) -> int:
    epoch = source.plan(None, Limits(max_records=max_records), env)
    assert epoch is not None
    return next(iter(epoch.ranges.values()))[0].end


def test_a_range_of_nothing_but_aborted_records_reads_no_rows(
    topic: Topic, env: KafkaEnv, other_session: SparkSession
) -> None:
    topic.begin_transaction(3).abort_transaction(20)
    source = KafkaSource([topic.name], max_wait=20)
    epoch = source.plan(None, Limits(), env)
    assert epoch is not None
    assert offsets(other_session, source, epoch.ranges, env) == []


def test_an_empty_epoch_reads_no_rows_with_the_columns_of_any_other(
    topic: Topic, env: KafkaEnv, other_session: SparkSession
) -> None:
    topic.produce(3, 1)
    source = KafkaSource([topic.name], starting="latest", max_wait=0)
    epoch = source.plan(None, Limits(), env)
    assert epoch is not None
    frame = other_session.read.format("kafka").options(**source.spark_read(epoch.ranges, env).options).load()
    assert {"key", "value", "topic", "partition", "offset", "timestamp"} <= set(frame.columns)
    assert frame.collect() == []


def test_options_reach_sparks_reader(topic: Topic, env: KafkaEnv, other_session: SparkSession) -> None:
    topic.produce(4)
    source = KafkaSource([topic.name], options={"includeHeaders": True, "minPartitions": 4})
    epoch = source.plan(None, Limits(), env)
    assert epoch is not None
    frame = other_session.read.format("kafka").options(**source.spark_read(epoch.ranges, env).options).load()
    assert "headers" in frame.columns
    assert frame.count() == 4


def test_a_record_whose_time_spark_cannot_hold_is_named_and_an_epoch_before_it_is_read(
    topic: Topic, env: KafkaEnv, other_session: SparkSession, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    set_config(admin, topic.name, "message.timestamp.after.max.ms", str(2**63 - 1))
    topic.produce(3)
    topic.produce(1, at_ms=1_700_000_000_000_000_000)
    source = KafkaSource([topic.name])
    read = source.spark_read({topic.name: (OffsetRange(0, 0, 4),)}, env)
    with pytest.raises(Exception, match="overflow") as failed:
        other_session.read.format("kafka").options(**read.options).load().write.parquet(str(tmp_path / "staged"))
    error = of_spark(failed.value, "Staging")
    assert error.code is codes.RECORD_TIME_INVALID
    assert f"topic {topic.name} partition 0 offset 3" in error.what
    assert offsets(other_session, source, {topic.name: (OffsetRange(0, 0, 3),)}, env) == [(0, 0), (0, 1), (0, 2)]
