"""The Kafka source against a broker with TLS, SASL and access rights, by kafka-python and by Spark."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import OffsetRange
from airflow_epochs.sources.base import Limits
from airflow_epochs.sources.kafka import KafkaSource
from kafka_certificates import Authority
from kafka_world import KafkaEnv, Topic
from stack.broker import Broker
from stack.connect import ConnectServer
from stack.jars import Jars
from stack.processes import free_port

pytestmark = pytest.mark.jvm

PLAIN_PASSWORD = "plain-s3cret"
SCRAM_PASSWORD = "a\"b\\c;d ='é$"
LOGIN_MODULE = "org.apache.kafka.common.security"


class Secured:
    """A broker whose listeners are plain (all rights), SASL over TLS, and TLS with client certificates."""

    def __init__(self, folder: Path, jars: Jars) -> None:
        self.authority = Authority("kafka test authority")
        self.client = self.authority.issue("certified")
        self.sasl_port, self.tls_port, self.clear_port = free_port(), free_port(), free_port()
        self.broker = Broker(folder, jars)
        self.broker.settings = self._settings(folder)

    def _settings(self, folder: Path) -> dict[str, str]:
        server = self.authority.issue("broker")
        folder.mkdir(parents=True)
        (folder / "server.pem").write_text(server.key_pem() + server.certificate_pem)
        (folder / "authority.pem").write_text(self.authority.pem)
        ports = {"SASL": self.sasl_port, "TLS": self.tls_port, "CLEAR": self.clear_port}
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        advertised = f"PLAINTEXT://{self.broker.bootstrap},{listeners}"
        plain = f'{LOGIN_MODULE}.plain.PlainLoginModule required user_reader="{PLAIN_PASSWORD}" user_nobody="x";'
        return {
            "listeners": f"{advertised},CONTROLLER://127.0.0.1:{self.broker.controller_port}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,TLS:SSL,"
            "CLEAR:SASL_PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "authority.pem"),
            "listener.name.tls.ssl.client.auth": "required",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl.plain.sasl.jaas.config": plain,
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{LOGIN_MODULE}.scram.ScramLoginModule required;",
            "listener.name.clear.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clear.plain.sasl.jaas.config": plain,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:reader;User:scrambled;User:CN=certified",
        }

    def env(self, **extra: object) -> KafkaEnv:
        defaults = {
            "bootstrap.servers": f"127.0.0.1:{self.sasl_port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": self.authority.pem,
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
            "sasl.password": PLAIN_PASSWORD,
            "socket.timeout.ms": 5000,
        }
        return KafkaEnv(**{**defaults, **extra})

    def env_of(self, way: str) -> KafkaEnv:
        if way == "PLAIN":
            return self.env()
        if way == "SCRAM":
            login = {"sasl.username": "scrambled", "sasl.password": SCRAM_PASSWORD}
            return self.env(**login, **{"sasl.mechanism": "SCRAM-SHA-512"})
        return KafkaEnv(
            **{
                "bootstrap.servers": f"localhost:{self.tls_port}",
                "security.protocol": "SSL",
                "ssl.ca.pem": self.authority.pem,
                "ssl.certificate.pem": self.client.certificate_pem,
                "ssl.key.pem": self.client.key_pem("key-s3cret"),
                "ssl.key.password": "key-s3cret",
            }
        )


@pytest.fixture(scope="module")
def secured(servers: Path, jars: Jars) -> Iterator[Secured]:
    it = Secured(servers / "secured", jars)
    with it.broker, KafkaAdminClient(bootstrap_servers=it.broker.bootstrap) as admin:
        user = UserScramCredentialUpsertion("scrambled", ScramMechanism.SCRAM_SHA_512, SCRAM_PASSWORD, iterations=4096)
        admin.alter_user_scram_credentials([user])
        yield it


@pytest.fixture
def topic(secured: Secured) -> Iterator[Topic]:
    with KafkaAdminClient(bootstrap_servers=secured.broker.bootstrap) as admin:
        topic = Topic(f"t-{uuid.uuid4().hex[:8]}", admin, secured.broker.bootstrap).create()
        topic.produce(3)
        yield topic


def plan(topic: Topic, env: KafkaEnv) -> Any:
    return KafkaSource([topic.name], max_wait=0).plan(None, Limits(), env)


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


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once_and_names_the_user(mechanism: str, topic: Topic, secured: Secured) -> None:
    begin = time.monotonic()
    with pytest.raises(Refused, match=f"does not let user reader by {mechanism} in") as refused:
        plan(topic, secured.env(**{"sasl.mechanism": mechanism, "sasl.password": "wrong-s3cret"}))
    assert time.monotonic() - begin < 4
    assert "wrong-s3cret" not in str(refused.value)


def test_a_mechanism_that_the_broker_does_not_offer_is_refused(topic: Topic, secured: Secured) -> None:
    with pytest.raises(Refused, match="does not let user reader by SCRAM-SHA-256 in"):
        plan(topic, secured.env(**{"sasl.mechanism": "SCRAM-SHA-256"}))


def test_a_user_without_rights_is_refused_and_told_which(topic: Topic, secured: Secured) -> None:
    nobody = secured.env(**{"sasl.username": "nobody", "sasl.password": "x"})
    with pytest.raises(Refused, match=rf"does not allow user nobody by PLAIN to describe topics.*{topic.name}.*Grant"):
        plan(topic, nobody)


def test_a_broker_certificate_of_an_unknown_authority_is_named_as_the_reason(topic: Topic, secured: Secured) -> None:
    stranger = secured.env(**{"ssl.ca.pem": Authority("another").pem, "socket.timeout.ms": 1000})
    with pytest.raises(NotApplied, match=rf"127.0.0.1:{secured.sasl_port}: .*CERTIFICATE_VERIFY_FAILED"):
        plan(topic, stranger)


def test_tls_at_a_listener_without_tls_is_an_error_that_names_it(topic: Topic, secured: Secured) -> None:
    mixed = secured.env(**{"bootstrap.servers": secured.broker.bootstrap, "socket.timeout.ms": 1000})
    with pytest.raises(
        NotApplied, match=rf"{secured.broker.bootstrap}: .*security\.protocol is that of their listener"
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
