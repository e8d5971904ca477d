"""Rows that Spark has staged go to a topic, and from there, as another pipeline's epochs, through Spark again."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from airflow_epochs import KafkaSink, KafkaSource
from airflow_epochs.contracts import Limits, Position
from airflow_epochs.model import Marker, VoteKind
from airflow_epochs.spark.driver.delta.jobs import WRITER_CONF
from stack.broker import Broker
from tests.support.delta_world import promised, stage_with_spark
from tests.support.environment import Environment
from tests.support.kafka_sink_world import Feed, memory_to_commit, seen_by_confluent, world_at
from tests.support.spark_world import LEGACY, settings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


class SessionOnly:
    def __init__(self, session: SparkSession) -> None:
        self.session = session


@pytest.fixture
def feed(broker: Broker, session: SparkSession, tmp_path: Path) -> Feed:
    topic = f"out-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    wait_until(lambda: topic in admin.list_topics(timeout=5).topics)
    world: Environment = world_at(broker.bootstrap)
    world.spark = SessionOnly(session)
    return Feed(KafkaSink("events", topic, staging=str(tmp_path / "staging")), world, f"p-{topic}")


def run(feed: Feed, frame: DataFrame) -> None:
    attempt = feed.attempt()
    claim = stage_with_spark(feed.sink, attempt, frame, feed.world)
    feed.commit(attempt, promised(feed.sink.vote(attempt, claim, feed.world)))


def visible(feed: Feed, broker: Broker) -> list[str | None]:
    return [v for p in (0, 1) for _, v, _ in seen_by_confluent(broker.bootstrap, feed.sink.topic, p)]


def shows(feed: Feed, broker: Broker, rows: int) -> bool:
    return len(visible(feed, broker)) == rows


def test_a_pipeline_chained_to_another_reads_each_of_its_rows_once(
    feed: Feed, broker: Broker, session: SparkSession
) -> None:
    source, position, read = KafkaSource([feed.sink.topic], max_wait=10), None, []
    for epoch in range(1, 4):
        numbers = session.range(epoch * 100, epoch * 100 + 50, 1, 3)
        run(
            feed,
            numbers.selectExpr(
                "cast(id as string) as key",
                "concat('v', id) as value",
                "cast(id % 2 as int) as partition",
                "array(struct('h' as key, cast(cast(id as string) as binary) as value)) as headers",
            ),
        )
        wait_until(partial(shows, feed, broker, 50 * epoch))
        planned = source.plan(position, Limits(), feed.world)
        assert planned
        options = {**source.spark_read(planned.ranges, feed.world).options, "includeHeaders": "true"}
        rows = session.read.format("kafka").options(**options).load().collect()
        read += [(row["value"].decode(), {h["key"]: bytes(h["value"]) for h in row["headers"]}) for row in rows]
        position = Position(ranges=planned.ranges, state=planned.state)
    wanted = [f"v{number}" for epoch in range(1, 4) for number in range(epoch * 100, epoch * 100 + 50)]
    assert sorted(value for value, _ in read) == sorted(wanted)
    assert all(headers["h"] == value[1:].encode() for value, headers in read)
    assert len({headers["airflow-epochs"] for _, headers in read}) == len(wanted)


@pytest.mark.long
def test_rows_of_a_megabyte_that_spark_has_staged_are_sent_in_little_memory(
    feed: Feed, broker: Broker, session: SparkSession
) -> None:
    for key, value in WRITER_CONF.items():  # as the runners do
        session.conf.set(key, value)
    # does not compress well, and is made in one call
    text = "base64(aes_encrypt(repeat(lpad(id, 8, '0'), 90000), '0123456789abcdef', 'CBC', 'PKCS', repeat('i', 16)))"
    attempt = feed.attempt()
    claim = stage_with_spark(feed.sink, attempt, session.range(0, 300, 1, 1).selectExpr(f"{text} AS value"), feed.world)
    staged = promised(feed.sink.vote(attempt, claim, feed.world))
    assert memory_to_commit(feed, broker.bootstrap, attempt, staged) <= 200
    assert feed.marker() == Marker.of(attempt.txn)


def test_what_spark_calls_a_timestamp_a_decimal_or_a_date_is_sent_as_documented(
    feed: Feed, broker: Broker, session: SparkSession
) -> None:
    frame = session.sql(
        "SELECT 1L AS id, timestamp'2026-01-31 01:02:03.5+01:00' AS at, timestamp_ntz'2026-01-31 01:02:03' AS local, "
        "date'2026-01-31' AS day, 1.50BD AS price, map('a', 1) AS counts, X'01' AS raw, NULL :: string AS nothing"
    )
    run(feed, frame)
    (sent,) = visible(feed, broker)
    assert json.loads(sent or "") == {
        "id": 1,
        "at": "2026-01-31T00:02:03.500000Z",
        "local": "2026-01-31T01:02:03",
        "day": "2026-01-31",
        "price": "1.50",
        "counts": {"a": 1},
        "raw": "AQ==",
        "nothing": None,
    }


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("cast(unhex('61FF62') AS string)", "column 's' is not UTF-8: b'a\\xffb'"),
        ("map('k', cast(unhex('FF') AS string))", "column 's' is not UTF-8"),
        ("timestamp'+11103-01-01 00:00:00 UTC'", "outside of the years 1 to 9999: a time of the year 11103"),
        ("date'-0044-03-15'", "column 's' is outside of the years 1 to 9999"),
        ("array(named_struct('t', date'+10000-01-01'))", "column 's' is outside of the years 1 to 9999"),
    ],
)
def test_a_value_that_spark_has_and_json_has_not_is_a_vote_abort_that_names_its_record(
    feed: Feed, broker: Broker, session: SparkSession, expression: str, expected: str
) -> None:
    origin = "named_struct('topic', 'clicks', 'partition', 4, 'offset', 100 + id) AS origin"
    attempt = feed.attempt()
    frame = session.range(3).selectExpr(origin, f"IF(id = 1, {expression}, NULL) AS s")
    vote = feed.sink.vote(attempt, stage_with_spark(feed.sink, attempt, frame, feed.world), feed.world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "the record at topic 'clicks', partition 4, offset 101: column 's'" in (vote.reason or "")
    assert expected in (vote.reason or "")
    assert visible(feed, broker) == []


def test_a_key_and_a_value_of_ones_own_are_sent_byte_for_byte(
    feed: Feed, broker: Broker, session: SparkSession
) -> None:
    run(feed, session.sql("SELECT cast(unhex('61FF') AS string) AS key, cast(unhex('00FF62') AS string) AS value"))
    assert [pair for partition in (0, 1) for pair in raw_records(broker, feed.sink.topic, partition)] == [
        (b"a\xff", b"\0\xffb")
    ]


def raw_records(broker: Broker, topic: str, partition: int) -> list[tuple[bytes | None, bytes | None]]:
    from kafka import KafkaConsumer, TopicPartition

    place = TopicPartition(topic, partition)
    options = {"isolation_level": "read_committed", "enable_auto_commit": False, "group_id": None}
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, **options)) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found: list[tuple[bytes | None, bytes | None]] = []
        while consumer.position(place) < consumer.end_offsets([place])[place]:
            found += [(record.key, record.value) for record in consumer.poll(1000).get(place, [])]
        return found


def test_old_dates_get_into_the_topic_as_they_are_whatever_calendar_the_server_is_set_up_to_write(
    feed: Feed, broker: Broker, session: SparkSession
) -> None:
    frame, attempt = session.sql("SELECT date'1500-01-01' AS day, 1 AS n"), feed.attempt()
    with settings(session, LEGACY):
        claim = stage_with_spark(feed.sink, attempt, frame, feed.world)
    feed.commit(attempt, promised(feed.sink.vote(attempt, claim, feed.world)))
    assert [json.loads(value or "") for value in visible(feed, broker)] == [{"day": "1500-01-01", "n": 1}]
