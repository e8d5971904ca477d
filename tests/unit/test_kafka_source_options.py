"""A KafkaSource without a broker: its options, its specification, and what it tells Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from airflow_epochs import KafkaSink, codes
from airflow_epochs.config import Pipeline, Transform
from airflow_epochs.contracts import Limits
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.model import OffsetRange
from airflow_epochs.sources.kafka.group import require_own_group
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.sources.kafka.starting import AtOffsets
from tests.support.kafka_world import KafkaEnv

PLAIN = KafkaEnv(**{"bootstrap.servers": "kafka:9092"})
RANGES = {"a": (OffsetRange(0, 5, 5), OffsetRange(1, 2, 9)), "b": (OffsetRange(0, 3, 3),), "c": (OffsetRange(2, 0, 1),)}


# --- options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"topics": []}, "It must be a topic name or a list"),
        ({"topics": ""}, "The topic name '' is not valid"),
        ({"topics": ["a b"]}, "The topic name 'a b' is not valid"),
        ({"topics": [".."]}, "The topic name '..' is not valid"),
        ({"topics": ["a", "a"]}, "`topics` is a, a. It must name each topic only once"),
        ({"topics": 5}, "It must be a topic name or a list"),
        ({"conn_id": ""}, "`conn_id` is ''. It must be a text that is not empty"),
        ({"max_records": 0}, "`max_records` is 0. It must be a whole number, 1 or larger"),
        ({"max_records": -5}, "`max_records` is -5. It must be a whole number, 1 or larger"),
        ({"max_records": 1.5}, "`max_records` is 1.5. It must be a whole number, 1 or larger"),
        ({"max_records": "many"}, "`max_records` is 'many'. It must be a number"),
        ({"max_records": True}, "`max_records` is True. It must be a number"),
        ({"max_records": float("inf")}, "`max_records` is inf. It must be a number"),
        ({"min_records": 0}, "`min_records` is 0. It must be a whole number, 1 or larger"),
        ({"min_records": 10, "max_records": 5}, "`min_records` is 10, and `max_records` is 5"),
        ({"bounds": "hourly"}, "`bounds` is 'hourly'. It must be 'available' or 'data_interval'"),
        ({"missed": "skip"}, "`missed` is 'skip'. It must be 'read' or 'refuse'"),
        ({"grace": -1}, "`grace` is -1. It must be a number of seconds from 0"),
        ({"bounds": "data_interval", "max_records": 5}, "`max_records` is 5, and `bounds` is 'data_interval'"),
        ({"bounds": "data_interval", "min_records": 5}, "`min_records` is 5, and `bounds` is 'data_interval'"),
        ({"bounds": "data_interval", "starting": "latest"}, "It must be a time, or left out"),
        (
            {"max_bytes": 0},
            "`max_bytes` is 0. It must be a number of bytes, 1 or larger, or a text like '256MiB' or '1 GB'",
        ),
        ({"max_bytes": "0 MB"}, "`max_bytes` is '0 MB'. It must be a number of bytes"),
        ({"max_bytes": "much"}, "`max_bytes` is 'much'. It must be a number of bytes"),
        ({"max_bytes": "-1 MB"}, "`max_bytes` is '-1 MB'. It must be a number of bytes"),
        ({"max_bytes": True}, "`max_bytes` is True. It must be a number of bytes"),
        ({"max_bytes": float("nan")}, "`max_bytes` is nan. It must be a number of bytes"),
        ({"max_bytes": "9" * 400}, "`max_bytes` is '9+'. It must be a number of bytes"),
        (
            {"max_delay": -1},
            r"`max_delay` is -1. It must be a number of seconds from 0 to 604800 \(a week\), or a text",
        ),
        ({"max_delay": "8 days"}, "`max_delay` is '8 days'. It must be a number of seconds from 0 to 604800"),
        ({"max_delay": "99999999999999 days"}, "`max_delay` is '99999999999999 days'. It must be a number of seconds"),
        ({"max_delay": "soon"}, "`max_delay` is 'soon'. It must be .* a text like '90 s', '10m' or '2 hours'"),
        ({"target_duration": 0}, "`target_duration` is 0. It must be a number of seconds from 1 to 604800"),
        ({"target_duration": True}, "`target_duration` is True. It must be a number of seconds from 1 to 604800"),
        ({"target_duration": "10 ms"}, "`target_duration` is '10 ms'. It must be a number of seconds from 1 to"),
        ({"max_wait": -1}, "`max_wait` is -1. It must be a number of seconds from 0 to 86400"),
        ({"max_wait": float("nan")}, "`max_wait` is nan. It must be a number"),
        ({"group_id": 5}, "`group_id` is 5. It must be a text"),
        ({"starting": "soon"}, "`starting` is 'soon'. It must be"),
        ({"starting": {"refunds": {"0": 1}}}, "`starting` names refunds. It may name only topics that are in `topics`"),
        ({"options": "minPartitions=5"}, "`options` is 'minPartitions=5'. It must be a dict"),
        ({"options": {"a": None}}, r"`options\['a'\]` is None. It must be a text"),
    ],
)
def test_an_option_that_is_not_valid_is_refused_at_construction(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadArgument, match=complaint):
        KafkaSource(**{"topics": ["orders"], **options})


@pytest.mark.parametrize(
    "name",
    [
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "STARTINGOFFSETS",
        "endingOffsets",
        "startingTimestamp",
        "endingOffsetsByTimestamp",
        "failOnDataLoss",
        "kafka.isolation.level",
        "Kafka.Isolation.Level",
    ],
)
def test_options_cannot_change_what_is_read(name: str) -> None:
    with pytest.raises(BadArgument, match=f"`options` sets {name}. It must not: the pipeline itself sets"):
        KafkaSource(["orders"], options={name: "x"})


@pytest.mark.parametrize(
    "name", ["kafka.bootstrap.servers", "kafka.security.protocol", "kafka.sasl.jaas.config", "KAFKA.SSL.key.password"]
)
def test_options_cannot_hold_what_belongs_to_the_connection(name: str) -> None:
    with pytest.raises(BadArgument, match=f"`options` sets {name}. It must not: this setting belongs to the Airflow"):
        KafkaSource(["orders"], options={name: "secret"})


def test_templates_are_taken_as_they_are_and_validated_once_rendered() -> None:
    source = KafkaSource(
        "{{ params.topics }}",
        max_records="{{ params.max_records }}",
        starting="{{ params.starting | tojson }}",
        options={"minPartitions": "{{ params.n }}"},
    )
    source.topics, source.max_records, source.options = "orders, refunds", "500", {"minPartitions": "4"}
    source.starting = '{"refunds": {"0": 7}}'
    config = source._config()
    assert config.topics == ("orders", "refunds")
    assert (config.max_records, config.options) == (500, {"minPartitions": "4"})
    assert config.starting == AtOffsets({"refunds": {0: 7}})
    source.max_records = "0"
    with pytest.raises(Refused, match=r"`max_records` is '0'. It must be a whole number, 1 or larger") as refused:
        source._config()
    assert str(refused.value).count("EPOCHS-") == 1


def test_what_is_not_a_template_is_validated_beside_templates() -> None:
    with pytest.raises(BadArgument, match="min_records"):
        KafkaSource("{{ params.topics }}", min_records=0)


def test_every_option_can_be_templated() -> None:
    assert set(KafkaSource.template_fields) == KafkaSource(["orders"])._raw().keys()


def test_a_param_left_empty_means_no_limit() -> None:
    source = KafkaSource(["orders"], max_records="{{ params.max_records }}")
    for empty in ("", "None"):
        source.max_records = empty
        assert source._config().max_records is None


def test_limits_of_the_run_go_over_those_of_the_source() -> None:
    source = KafkaSource(["orders"], max_records=100, starting="latest")
    config = source._config(Limits(max_records=7, starting={"orders": {"0": 3}}))
    assert (config.max_records, config.starting) == (7, AtOffsets({"orders": {0: 3}}))
    with pytest.raises(Refused, match=r"`max_records` is 0. It must be a whole number, 1 or larger"):
        source._config(Limits(max_records=0))
    config = source._config(Limits(max_bytes="1 KB", min_records=5, max_delay="1m", target_duration="2h"))
    assert (config.max_bytes, config.min_records, config.max_delay_s, config.target_s) == (1000, 5, 60, 7200)


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [
        (5, 5),
        (1e3, 1000),
        ("5", 5),
        ("5 B", 5),
        ("256MiB", 2**28),
        ("1.5 kib", 1536),
        ("2 GB", 2 * 10**9),
        ("1T", 10**12),
    ],
)
def test_bytes_are_a_number_or_a_text_with_a_unit(given: Any, bytes_: int) -> None:
    assert KafkaSource(["orders"], max_bytes=given)._config().max_bytes == bytes_


@pytest.mark.parametrize(("given", "seconds"), [(90, 90), ("90", 90), ("90 s", 90), ("10m", 600), ("1.5 hours", 5400)])
def test_durations_are_seconds_or_a_text_with_a_unit(given: Any, seconds: float) -> None:
    config = KafkaSource(["orders"], max_delay=given, target_duration=given)._config()
    assert (config.max_delay_s, config.target_s) == (seconds, seconds)


# --- specification --------------------------------------------------------------------------------------------


def test_spec_is_json_and_from_spec_is_its_inverse() -> None:
    source = KafkaSource(
        ("orders", "refunds"),
        conn_id="k",
        starting={"orders": {0: 5}},
        max_records=10,
        min_records=2,
        max_wait=1.5,
        max_bytes="256MiB",
        max_delay="10m",
        target_duration=600,
        group_id="g",
        options={"includeHeaders": True},
    )
    spec = json.loads(json.dumps(source.spec()))
    assert spec["kind"] == "kafka"
    again = KafkaSource.from_spec({**spec, "from_the_future": 1})
    assert again.spec() == spec
    assert again._config() == source._config()


def test_a_topic_that_topics_no_longer_names_is_left_out() -> None:
    source = KafkaSource(["orders"])
    assert [topic for topic in ("orders", "payments") if source.leaves_out(topic)] == ["payments"]


def test_importing_the_source_imports_no_kafka_client() -> None:
    heavy = ("kafka", "ssl", "cryptography", "pyspark", "airflow")
    code = f"import sys, airflow_epochs.sources.kafka.source; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what Spark is told ---------------------------------------------------------------------------------------


def test_spark_reads_exactly_the_ranges_that_are_not_empty() -> None:
    read = KafkaSource(["a", "b", "c"]).spark_read(RANGES, PLAIN)
    assert read.secrets == {}
    assert read.options == {
        "kafka.bootstrap.servers": "kafka:9092",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.max.poll.records": "20000",
        "kafka.fetch.max.wait.ms": "10",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "assign": '{"a":[1],"c":[2]}',
        "startingOffsets": '{"a":{"1":2},"c":{"2":0}}',
        "endingOffsets": '{"a":{"1":9},"c":{"2":1}}',
    }


def test_options_go_to_spark_and_may_replace_the_defaults() -> None:
    source = KafkaSource(["a"], options={"includeHeaders": True, "kafka.MAX.poll.records": 77})
    options = source.spark_read(RANGES, PLAIN).options
    assert options["includeHeaders"] == "true"
    assert [value for name, value in options.items() if name.lower() == "kafka.max.poll.records"] == ["77"]


def test_an_empty_epoch_is_a_read_of_empty_ranges() -> None:
    options = KafkaSource(["b"]).spark_read({"b": RANGES["b"]}, PLAIN).options
    assert (options["assign"], options["startingOffsets"]) == ('{"b":[0]}', '{"b":{"0":3}}')
    assert options["startingOffsets"] == options["endingOffsets"]


def test_an_empty_epoch_is_no_read_of_topics_that_are_left_out_and_may_be_deleted() -> None:
    empty = {"b": RANGES["b"], "gone": (OffsetRange(0, 7, 7),)}
    assert KafkaSource(["b"]).spark_read(empty, PLAIN).options["assign"] == '{"b":[0]}'
    assert KafkaSource(["new"]).spark_read(empty, PLAIN).options["assign"] == '{"b":[0],"gone":[0]}'


def test_a_group_that_no_program_uses_is_deleted_by_a_command_that_can_be_pasted() -> None:
    with pytest.raises(Refused) as refused:
        require_own_group("lag", {("orders", 0): (5, "")}, None, ["kafka-1:9092", "kafka-2:9092"])
    command = "`kafka-consumer-groups.sh --bootstrap-server kafka-1:9092,kafka-2:9092 --delete --group lag`"
    assert command in refused.value.remedy


# --- a pipeline that would read what it writes ------------------------------------------------------------------


def looped(topics: list[str], allow_loop: bool = False, conn_id: str = "kafka_default") -> Pipeline:
    return Pipeline(
        name="p",
        dag_id="d",
        source=KafkaSource(topics, allow_loop=allow_loop),
        sinks=(KafkaSink("again", "orders", staging="/tmp/staging", conn_id=conn_id),),
        transform=Transform(path="t.py", function="f"),
    )


def test_a_pipeline_that_writes_to_a_topic_that_it_reads_is_refused_unless_asked_for() -> None:
    with pytest.raises(Refused, match=r"'again' writes to kafka://kafka_default/orders, which the pipeline reads") as e:
        looped(["clicks", "orders"])
    assert e.value.code is codes.LOOP and "set KafkaSource(allow_loop=True)" in e.value.remedy
    looped(["clicks", "orders"], allow_loop=True)
    looped(["clicks"])
    looped(["{{ params.topic }}"])


def test_a_loop_through_another_connection_to_the_same_brokers_is_refused_by_open() -> None:
    pipeline = looped(["orders"], conn_id="other")
    assert isinstance(pipeline.source, KafkaSource)
    env = KafkaEnv(**{"bootstrap.servers": "kafka-1:9092"})
    writes = {"kafka://other/orders", "file:///tables/orders"}
    with pytest.raises(
        Refused,
        match="through the connection 'other', and the source reads the same topic through the connection 'kafka_def",
    ) as e:
        pipeline.source.prepare("p", writes, None, env)
    assert e.value.code is codes.LOOP
    KafkaSource(["orders"], allow_loop=True).prepare("p", writes, None, env)
    KafkaSource(["clicks"]).prepare("p", writes, None, env)
