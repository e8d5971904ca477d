"""Kafka's credentials by reference: what stands in a plan, and the file that a Spark server reads them from.

That Kafka's Java client reads such a file is shown with real brokers, in test_kafka_source_secured.py.
"""

from __future__ import annotations

import json
import stat
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import cli
from airflow_epochs.contracts import Connection, SparkJob, SparkRead
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import OffsetRange
from airflow_epochs.sources.kafka.source import KafkaSource
from airflow_epochs.spark.kafka_credentials import Sent, properties, sent
from airflow_epochs.testing import MemorySource, MemorySpark
from tests.support.kafka_certificates import Authority
from tests.support.kafka_world import KafkaEnv
from tests.support.scenario import Scenario, staged
from tests.support.spark_world import stage_job

FILE = "/etc/spark/kafka.properties"
SECRETS = {"kafka.sasl.jaas.config": 'x password="hunter2";', "kafka.ssl.keystore.key": "-----BEGIN hunter3"}


def job(**read: str) -> SparkJob:
    plan = stage_job(None, "/app.py:f", {}, read=read)
    return replace(plan, secrets=SECRETS, secrets_of="orders_kafka")


def server(**extra: Any) -> Connection:
    return Connection(conn_id="spark", conn_type="spark_connect", host="spark", extra=extra)


def test_with_a_file_the_plan_has_references_in_place_of_every_secret_option() -> None:
    travels = sent(job(), server(kafka_credentials_file=FILE))
    assert travels.options == {
        "kafka.config.providers": "epochs",
        "kafka.config.providers.epochs.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "kafka.sasl.jaas.config": "${epochs:/etc/spark/kafka.properties:orders_kafka.sasl.jaas.config}",
        "kafka.ssl.keystore.key": "${epochs:/etc/spark/kafka.properties:orders_kafka.ssl.keystore.key}",
    }
    assert travels.readable == {}


def test_config_providers_of_the_sources_own_options_stay() -> None:
    own = {"kafka.config.providers": "env", "kafka.config.providers.env.class": "a.Class"}
    travels = sent(job(**own), server(kafka_credentials_file=FILE))
    assert travels.options["kafka.config.providers"] == "env,epochs"
    assert "kafka.config.providers.env.class" not in travels.options  # it is among the read's options


@pytest.mark.parametrize(
    ("given", "extra"),
    [
        (job(), {}),
        (job(), {"kafka_credentials_file": ""}),
        (SparkJob(kind="stage", args={}, secrets=SECRETS), {"kafka_credentials_file": FILE}),
    ],
    ids=["no file", "an empty field", "a source of others, which does not say whose they are"],
)
def test_otherwise_the_plan_has_the_secrets_themselves(given: SparkJob, extra: dict[str, str]) -> None:
    travels = sent(given, server(**extra))
    assert travels.options == travels.readable == SECRETS
    assert "hunter" not in repr(travels)


@pytest.mark.parametrize("file", ["kafka.properties", "file:///etc/kafka.properties", "/etc/a:b", "/etc/a}b"])
def test_a_path_that_kafka_cannot_be_referred_to_is_refused(file: str) -> None:
    with pytest.raises(Refused, match="kafka_credentials_file of connection spark is"):
        sent(job(), server(kafka_credentials_file=file))


def test_a_kafka_source_says_whose_secrets_its_read_has() -> None:
    read = KafkaSource(["t"], conn_id="k").spark_read(
        {"t": (OffsetRange(0, 0, 1),)}, KafkaEnv(**{"bootstrap.servers": "b:1"})
    )
    assert read.secrets_of == "k"


def test_the_stage_job_has_the_secrets_of_the_read_and_says_whose_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MemorySource.spark_read

    def with_secrets(*given: Any) -> SparkRead:
        return replace(plain(*given), secrets=SECRETS, secrets_of="orders_kafka")

    monkeypatch.setattr(MemorySource, "spark_read", with_secrets)
    scenario, spark = Scenario(), MemorySpark()
    staged(scenario, scenario.coordinator(spark=spark))
    assert [(job.secrets, job.secrets_of) for job in spark.jobs] == [(SECRETS, "orders_kafka")]
    assert [job.args["connection"] for job in spark.jobs] == ["orders_kafka"], "errors name it"


@pytest.mark.parametrize(
    "cause",
    [
        "Caused by: org.apache.kafka.common.config.ConfigException: Could not read properties from file",
        "Caused by: java.lang.IllegalArgumentException: Login module control flag not specified in JAAS config",
        "Caused by: org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed",
    ],
)
def test_an_error_that_the_file_causes_names_it_and_the_command_that_writes_it(cause: str) -> None:
    error = NotApplied(f"The Spark job 'stage' failed: {cause}", remedy="Look.")
    told = sent(job(), server(kafka_credentials_file=FILE)).explained(error)
    assert isinstance(told, Refused)
    assert told.what == f"Spark cannot log in to Kafka with the credentials file {FILE}: {error.what}"
    assert "has orders_kafka.sasl.jaas.config, orders_kafka.ssl.keystore.key as" in told.remedy
    assert "`airflow epochs kafka-credentials orders_kafka --file" in told.remedy
    assert Sent(SECRETS).explained(error) is error


def test_other_errors_are_left_alone() -> None:
    error = NotApplied("The Spark job 'stage' failed: no column", remedy="Look.")
    assert sent(job(), server(kafka_credentials_file=FILE)).explained(error) is error


# -- the file ---------------------------------------------------------------------------------------------------------


def test_properties_are_escaped_as_java_reads_them() -> None:
    secrets = {"kafka.a": 'p="x\\" é\n\t$😀', "kafka.b": "  two #!:="}
    assert properties("my:conn", secrets) == (
        'my\\:conn.a=p\\="x\\\\" \\u00e9\\n\\t$\\ud83d\\ude00\nmy\\:conn.b=\\  two \\#\\!\\:\\=\n'
    )


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Authority("a").issue("client")
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "hunter2",
    }
    tls = {"security.protocol": "SSL", "ssl.certificate.pem": pair.certificate_pem, "ssl.key.pem": pair.key_pem()}
    for name, extra in (("LOGIN", login), ("TLS", tls), ("PLAIN", {})):
        described = {"conn_type": "kafka", "extra": {"bootstrap.servers": "b:1", **extra}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(described))


def write(file: Path, *conn_id: str) -> None:
    cli.write_kafka_credentials(Namespace(conn_id=list(conn_id), file=str(file)))


@pytest.mark.proof
def test_the_command_writes_one_line_for_every_secret_of_the_connections_and_only_their_owner_can_read_it(
    connections: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("old=1\n")
    file.chmod(0o644)
    write(file, "login", "tls")
    login, tls = file.read_text().splitlines()
    assert login.startswith("login.sasl.jaas.config=org.") and login.endswith('password\\="hunter2";')
    assert tls.startswith("tls.ssl.keystore.key=-----BEGIN PRIVATE KEY----- ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["kafka.properties"]
    printed = capsys.readouterr().out
    assert f"{file} has the credentials of login, tls" in printed and "hunter2" not in printed


def test_the_command_writes_nothing_if_a_connection_has_no_secret_or_the_folder_takes_no_file(
    connections: None, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"Connection plain has no password and no key.*\nWhat to do: Leave"):
        write(tmp_path / "a", "login", "plain")
    with pytest.raises(SystemExit, match=r"/none/a cannot be written: No such file.*\nWhat to do: Name"):
        write(tmp_path / "none" / "a", "login")
    assert list(tmp_path.iterdir()) == []
