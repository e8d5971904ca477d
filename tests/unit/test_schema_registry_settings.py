"""Which addresses the client of a schema registry asks, given a connection."""

from __future__ import annotations

import pytest

from airflow_epochs.contracts import Connection
from airflow_epochs.kafka.schema_registry import client_of


@pytest.mark.proof
@pytest.mark.parametrize(
    ("host", "port", "asked"),
    [
        ("registry", None, ["http://registry"]),
        ("registry", 8081, ["http://registry:8081"]),
        ("https://registry/", 8081, ["https://registry:8081"]),
        ("https://registry/apis/ccompat/v7", 8080, ["https://registry:8080/apis/ccompat/v7"]),
        ("registry:9999/apis/ccompat/v7", 8080, ["http://registry:9999/apis/ccompat/v7"]),
        ("a, b", 8081, ["http://a:8081", "http://b:8081"]),
        ("http://[::1]", 8081, ["http://[::1]:8081"]),
    ],
)
def test_the_port_of_a_connection_belongs_to_each_host_without_one(
    host: str, port: int | None, asked: list[str]
) -> None:
    with client_of(Connection(conn_id="registry", conn_type="schema_registry", host=host, port=port)) as client:
        assert client._rest_client.base_urls == asked
