"""A DAG that names the connection of another service is told so first: that connection must not be changed."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.errors import EpochError
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.kafka.client import KafkaClient
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.kafka.schema_registry import subjects_of
from airflow_epochs.spark.runners import SparkConnect
from airflow_epochs.spark.submit_failures import of_start
from airflow_epochs.storage.options import storage_options
from tests.support.environment import connected

JOB = SparkJob(kind="delta_describe", args={}, description="a test")
WRONG_MASTER = "Master must either be yarn or start with spark, k8s, or local"


@pytest.fixture
def closed() -> int:
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def ledger_of(connection: Connection) -> object:
    with pytest.MonkeyPatch.context() as patch:
        told = {"conn_type": connection.conn_type, "host": connection.host, "extra": connection.extra}
        patch.setenv(f"AIRFLOW_CONN_{connection.conn_id.upper()}", json.dumps(told))
        return EpochsHook(connection.conn_id).get_conn()


def asked(connection: Connection) -> object:
    with KafkaClient(read_connection(connection)) as client:
        return client


def job_on(connection: Connection) -> object:
    return SparkConnect(connection.conn_id).runner(connected(connection)).run(JOB)


def submitted(connection: Connection) -> None:
    error = of_start(WRONG_MASTER, connection)
    assert error
    raise error


LEDGER, KAFKA, DATABASE = (
    Connection(conn_id="ledger", conn_type="epochs", extra={"ledger_root": "/ledger"}),
    Connection(conn_id="brokers", conn_type="kafka", extra={"bootstrap.servers": "127.0.0.1:{closed}"}),
    Connection(conn_id="bank", conn_type="postgres", host="127.0.0.1", extra={"socket.timeout.ms": 300}),
)


@pytest.mark.parametrize(
    ("wrong", "use", "belongs", "named"),
    [
        (LEDGER, read_connection, "kafka", "in the DAG"),
        (DATABASE, asked, "kafka", "in the DAG"),
        (KAFKA, job_on, "spark_connect", "in the DAG"),
        (DATABASE, job_on, "spark_connect", "in the DAG"),
        (KAFKA, submitted, "spark", "in the DAG"),
        (KAFKA, subjects_of, "schema_registry", "in the DAG"),
        (DATABASE, subjects_of, "schema_registry", "in the DAG"),
        (KAFKA, ledger_of, "epochs", "as `ledger_conn_id`"),
    ],
)
def test_a_connection_of_another_service_is_named_with_its_type_before_anything_about_its_fields(
    closed: int, wrong: Connection, use: Callable[[Connection], object], belongs: str, named: str
) -> None:
    given = Connection(**{**vars(wrong), "port": closed})
    with pytest.raises(EpochError) as refused:
        use(given)
    first = f"Connection {wrong.conn_id!r} is of type {wrong.conn_type}, and one of type {belongs} belongs here. "
    assert refused.value.what.startswith(first)
    assert refused.value.what.count(first) == 1
    assert refused.value.remedy.startswith(f"Name a connection of type {belongs} {named}, unless this one is right. ")


@pytest.mark.parametrize("conn_type", ["", "generic", "{expected}"])
@pytest.mark.parametrize(
    ("use", "belongs"),
    [
        (read_connection, "kafka"),
        (job_on, "spark_connect"),
        (submitted, "spark"),
        (subjects_of, "schema_registry"),
        (ledger_of, "epochs"),
    ],
)
def test_of_a_connection_without_a_type_that_says_anything_only_its_fields_are_told(
    conn_type: str, use: Callable[[Connection], object], belongs: str
) -> None:
    with pytest.raises(EpochError) as refused:
        use(Connection(conn_id="mine", conn_type=conn_type.format(expected=belongs)))
    assert "belongs here" not in refused.value.what
    assert "Name a connection of type" not in refused.value.remedy


def test_credentials_of_another_service_are_not_the_first_thing_to_be_taken_out_of_its_connection() -> None:
    bank = Connection(conn_id="bank", conn_type="postgres", login="teller", password="secret")
    with pytest.raises(EpochError, match="Connection 'bank' has the type 'postgres'") as refused:
        storage_options(bank)
    assert refused.value.remedy.startswith("Name a connection of type aws, google_cloud_platform, wasb or adls ")
    store = Connection(conn_id="store", conn_type="aws", login="teller", password="secret")
    assert storage_options(store) == {"aws_access_key_id": "teller", "aws_secret_access_key": "secret"}, "the remedy"
