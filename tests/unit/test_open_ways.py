"""Ways on which others can read or change what a task sends are warned of, once, in the task's log."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Refused
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.spark.connect_address import refuse_to_send_readably
from airflow_epochs.storage.options import storage_options

READERS: dict[str, Any] = {
    "aws": storage_options,
    "wasb": storage_options,
    "kafka": read_connection,
    "spark_connect": lambda connection: refuse_to_send_readably(connection, []),
}
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "hunter2",
}
TLS = {"security.protocol": "SSL", "bootstrap.servers": "kafka:1"}


@pytest.mark.parametrize(
    ("conn_type", "fields", "warning"),
    [
        ("aws", {"extra": {"verify": False}}, "certificate is not verified"),
        ("aws", {"extra": {"endpoint_url": "http://me:hunter2@minio:9000"}}, "http://minio:9000 is not https"),
        ("aws", {"extra": {"storage_options": {"aws_endpoint": "http://minio"}}}, "http://minio is not https"),
        ("aws", {"extra": {"storage_options": {"endpoint_url": "http://minio"}}}, "http://minio is not https"),
        ("wasb", {"extra": {"storage_options": {"azure_endpoint": "http://azurite"}}}, "http://azurite is not https"),
        ("kafka", {"extra": {**TLS, "ssl.endpoint.identification.algorithm": "none"}}, "brokers are not verified"),
        ("kafka", {"extra": {**SASL, "bootstrap.servers": "localhost:1,kafka:1"}}, "login and records travel readably"),
        ("spark_connect", {"host": "spark", "port": 15002}, "neither TLS (use_ssl) nor a token"),
        ("spark_connect", {"host": "spark", "extra": {"use_ssl": "false"}}, "neither TLS (use_ssl) nor a token"),
        ("spark_connect", {"host": "127.0.0.1.example.com"}, "neither TLS (use_ssl) nor a token"),
        ("spark_connect", {"host": "127.0.0.1", "password": "hunter2"}, "enter localhost as the host"),
    ],
)
def test_an_open_way_is_warned_of_once(
    conn_type: str, fields: dict[str, Any], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection(conn_id="c", conn_type=conn_type, **fields)
    for _ in range(2):
        READERS[conn_type](connection)
    assert [warning in record.getMessage() for record in caplog.records] == [True]
    assert "connection c: " in caplog.text and "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("conn_type", "fields"),
    [
        ("aws", {"extra": {"endpoint_url": "https://minio:9000"}}),
        ("aws", {"extra": {"endpoint_url": "http://localhost:9000", "verify": True}}),
        ("aws", {"extra": {"storage_options": {"proxy_url": "http://proxy"}}}),
        ("kafka", {"extra": {**SASL, "bootstrap.servers": "localhost:1,127.0.0.1:2,[::1]:3"}}),
        ("kafka", {"extra": TLS}),
        ("spark_connect", {"host": "127.0.0.1"}),
        ("spark_connect", {"host": "sc://LOCALHOST", "port": 15002}),
        ("spark_connect", {"host": "[::1]", "port": 15002}),
        ("spark_connect", {"host": "spark", "extra": {"use_ssl": True}}),
        ("spark_connect", {"host": "spark", "password": "token"}),
        ("spark_connect", {"host": "localhost", "password": "token"}),
        ("spark_connect", {"host": "127.0.0.1", "password": "token", "extra": {"use_ssl": True}}),
    ],
)
def test_a_closed_way_is_not(conn_type: str, fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    READERS[conn_type](Connection(conn_id="c", conn_type=conn_type, **fields))
    assert caplog.records == []


# -- secrets in a Spark job -------------------------------------------------------------------------------------------

SECRETS = ("kafka.ssl.keystore.key", "kafka.sasl.jaas.config")


@pytest.mark.parametrize("host", ["spark", "10.0.0.7", "localhost.example.com", "127.0.0.1.example.com"])
@pytest.mark.parametrize("extra", [{}, {"use_ssl": False}, {"use_ssl": "no"}, {"allow_clear_text": False}])
def test_secrets_are_not_sent_readably_to_another_machine(host: str, extra: dict[str, Any]) -> None:
    connection = Connection(conn_id="c", conn_type="spark_connect", host=host, port=1, extra=extra)
    with pytest.raises(Refused) as refused:
        refuse_to_send_readably(connection, SECRETS)
    assert f"{host}:1" in refused.value.what
    assert "could read kafka.sasl.jaas.config, kafka.ssl.keystore.key: connection c has neither" in refused.value.what
    for way in ("use_ssl", "token", "kafka_credentials_file", "allow_clear_text: true"):
        assert way in refused.value.remedy


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "localhost"},
        {"host": "127.0.0.1"},
        {"host": "spark", "extra": {"use_ssl": "True"}},
        {"host": "spark", "password": "token"},
    ],
)
def test_secrets_are_sent_where_nobody_else_reads(fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    refuse_to_send_readably(Connection(conn_id="c", conn_type="spark_connect", **fields), SECRETS)
    assert caplog.records == []


def test_secrets_are_sent_readably_where_the_connection_says_so_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    extra = {"allow_clear_text": "true"}
    connection = Connection(conn_id="c", conn_type="spark_connect", host="spark", extra=extra)
    refuse_to_send_readably(connection, SECRETS)
    assert "travel readably, with kafka.sasl.jaas.config, kafka.ssl.keystore.key in them" in caplog.text
