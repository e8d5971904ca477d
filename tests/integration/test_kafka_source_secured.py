"""The Kafka source against a broker with TLS, SASL and access rights, by kafka-python and by Spark."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from airflow_epochs.contracts import Connection, Limits, SparkJob
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.model import OffsetRange
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.spark.connect import ConnectRunner
from airflow_epochs.spark.kafka_credentials import properties
from airflow_epochs.spark.runners import SparkConnect
from stack.connect import ConnectServer
from tests.support.environment import connected
from tests.support.kafka_certificates import Authority
from tests.support.kafka_secured import PLAIN_PASSWORD, Secured, secured_topic
from tests.support.kafka_world import KafkaEnv, Topic
from tests.support.spark_world import stage_job, staged_rows
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


@pytest.fixture
def topic(secured: Secured) -> Iterator[Topic]:
    with secured_topic(secured, 3) as topic:
        yield topic


def plan(topic: Topic, env: KafkaEnv) -> Any:
    return KafkaSource([topic.name], max_wait=0).plan(None, Limits(), env)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["PLAIN", "SCRAM", "certificate"])
def test_each_way_of_logging_in_plans_and_acknowledges_and_spark_reads(
    way: str, topic: Topic, secured: Secured, connect: ConnectServer
) -> None:
    env, it = secured.env_of(way), KafkaSource([topic.name])
    epoch = plan(topic, env)
    assert epoch.ranges == {topic.name: (OffsetRange(0, 0, 3),)}
    it.acknowledge("p", epoch.ranges, env)
    read = it.spark_read(epoch.ranges, env)
    assert not [secret for secret in (PLAIN_PASSWORD, "PRIVATE KEY") if secret in str(read)]
    session = connect.session()
    try:
        rows = session.read.format("kafka").options(**read.options, **read.secrets).load().collect()
    finally:
        session.stop()
    assert sorted(row["offset"] for row in rows) == [0, 1, 2]


# -- by a file on the Spark server ------------------------------------------------------------------------------------


def by_file(connect: ConnectServer, file: Path) -> ConnectRunner:
    extra = {"kafka_credentials_file": str(file)}
    server = Connection(conn_id="spark", conn_type="spark_connect", extra=extra, **connect.where)
    return SparkConnect("spark").runner(connected(server))


def job(topic: Topic, env: KafkaEnv, folder: Path) -> SparkJob:
    """Stages all of the topic's records."""
    transform = folder / "app.py"
    transform.write_text("def f(batch, epoch): return batch.select('partition', 'offset')")
    read = KafkaSource([topic.name]).spark_read(plan(topic, env).ranges, env)
    place = {"one": folder / "t"}
    return stage_job(None, f"{transform}:f", place, read=read.options, secrets=read.secrets, secrets_of=read.secrets_of)


def written(env: KafkaEnv, file: Path) -> Path:
    file.write_text(properties("kafka_default", read_connection(env.connection("kafka_default")).spark_secrets()))
    return file


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["PLAIN", "SCRAM", "certificate"])
def test_spark_logs_in_each_way_by_a_file_of_its_server_and_reads_all_records(
    way: str, topic: Topic, secured: Secured, connect: ConnectServer, tmp_path: Path
) -> None:
    env = secured.env_of(way)
    by_file(connect, written(env, tmp_path / "kafka.properties")).run(job(topic, env, tmp_path))
    counted = duckdb.sql(f"select count(*), count(distinct \"offset\") from '{tmp_path}/t/**/*.parquet'")
    assert counted.fetchall() == [(3, 3)]
    assert sorted(row["offset"] for row in staged_rows(tmp_path / "t")) == [0, 1, 2]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("flaw", "way"),
    [
        ("no file", "PLAIN"),
        ("a file that cannot be read", "certificate"),
        ("no such property", "PLAIN"),
        ("no such property", "certificate"),
    ],
)
def test_a_file_that_is_not_there_or_lacks_a_property_is_named_without_a_secret(
    flaw: str, way: str, topic: Topic, secured: Secured, connect: ConnectServer, tmp_path: Path
) -> None:
    file, env = tmp_path / "kafka.properties", secured.env_of(way)
    if flaw == "no such property":
        written(env, file).write_text(file.read_text().replace("kafka_default.", "another."))
    elif flaw == "a file that cannot be read":
        file.mkdir()
    with pytest.raises(Refused) as refused:
        by_file(connect, file).run(job(topic, env, tmp_path))
    assert refused.value.what.startswith(f"Spark cannot log in to Kafka with the credentials file {file}: ")
    assert "kafka_default.s" in refused.value.remedy
    assert "airflow epochs kafka-credentials kafka_default" in refused.value.remedy
    assert not any(secret in str(refused.value) for secret in (PLAIN_PASSWORD, "-----BEGIN PRIVATE KEY"))


@pytest.mark.long
def test_a_file_with_an_old_password_is_named(
    topic: Topic, secured: Secured, connect: ConnectServer, tmp_path: Path
) -> None:
    env = secured.env_of("PLAIN")
    file = written(secured.env(**{"sasl.password": "old-s3cret"}), tmp_path / "kafka.properties")
    with pytest.raises(Refused, match=rf"with the credentials file {file}: (.|\n)*Authentication failed") as refused:
        by_file(connect, file).run(job(topic, env, tmp_path))
    assert "s3cret" not in str(refused.value)


# -- what the brokers refuse ------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once_and_names_the_user(mechanism: str, topic: Topic, secured: Secured) -> None:
    begin = time.monotonic()
    with pytest.raises(Refused, match=rf"rejected the login of user reader \({mechanism}\)") as refused:
        plan(topic, secured.env(**{"sasl.mechanism": mechanism, "sasl.password": "wrong-s3cret"}))
    assert time.monotonic() - begin < 4
    assert "wrong-s3cret" not in str(refused.value)


def test_a_mechanism_that_the_broker_does_not_offer_is_refused(topic: Topic, secured: Secured) -> None:
    with pytest.raises(Refused, match=r"rejected the login of user reader \(SCRAM-SHA-256\)"):
        plan(topic, secured.env(**{"sasl.mechanism": "SCRAM-SHA-256"}))


def test_a_user_without_rights_is_refused_and_told_which(topic: Topic, secured: Secured) -> None:
    nobody = secured.env(**{"sasl.username": "nobody", "sasl.password": "x"})
    with pytest.raises(
        Refused, match=rf"does not permit user nobody \(PLAIN\) to describe topics.*{topic.name}(.|\n)*Grant"
    ):
        plan(topic, nobody)


def test_a_user_that_may_read_but_not_describe_the_cluster_is_told_so_if_max_bytes_needs_it(
    topic: Topic, secured: Secured
) -> None:
    rights = [
        ACL("User:nobody", "*", right, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, topic.name))
        for right in (ACLOperation.READ, ACLOperation.DESCRIBE)
    ]
    topic.admin.create_acls(rights)
    nobody = secured.env(**{"sasl.username": "nobody", "sasl.password": "x"})
    it = KafkaSource([topic.name], max_wait=0, max_bytes="1 MB")
    wait_until(lambda: _is_refused(it, nobody, "describe the log directories(.|\n)*Grant .* Describe on the cluster"))
    assert plan(topic, nobody), "without max_bytes, the right is not needed"


def _is_refused(it: KafkaSource, env: KafkaEnv, why: str) -> bool:
    """Also while the brokers do not know the rights yet."""
    with pytest.raises(Refused) as refused:
        it.plan(None, Limits(), env)
    return re.search(why, str(refused.value)) is not None


def test_a_broker_certificate_of_an_unknown_authority_is_named_as_the_reason(topic: Topic, secured: Secured) -> None:
    stranger = secured.env(**{"ssl.ca.pem": Authority("another").pem, "socket.timeout.ms": 1000})
    with pytest.raises(NotApplied, match=rf"127.0.0.1:{secured.sasl_port}: .*CERTIFICATE_VERIFY_FAILED"):
        plan(topic, stranger)


def test_tls_at_a_listener_without_tls_is_an_error_that_names_it(topic: Topic, secured: Secured) -> None:
    mixed = secured.env(**{"bootstrap.servers": secured.broker.bootstrap, "socket.timeout.ms": 1000})
    with pytest.raises(
        NotApplied,
        match=rf"{secured.broker.bootstrap}: (.|\n)*security\.protocol .* the protocol of the brokers' listener",
    ):
        plan(topic, mixed)


def test_no_password_reaches_the_log_even_at_debug_level(
    topic: Topic, secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    clear = {"bootstrap.servers": f"127.0.0.1:{secured.clear_port}", "security.protocol": "SASL_PLAINTEXT"}
    with caplog.at_level(logging.DEBUG):
        assert plan(topic, secured.env(**clear)) is not None
    assert "kafka" in caplog.text
    assert PLAIN_PASSWORD not in caplog.text
