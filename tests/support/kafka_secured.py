"""A broker with TLS, SASL and access rights, and connections to it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from stack.broker import Broker
from stack.jars import Jars
from stack.ports import free_port
from tests.support.kafka_certificates import Authority
from tests.support.kafka_world import KafkaEnv, Topic

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


@contextmanager
def secured_broker(folder: Path, jars: Jars) -> Iterator[Secured]:
    it = Secured(folder, jars)
    with it.broker, KafkaAdminClient(bootstrap_servers=it.broker.bootstrap) as admin:
        user = UserScramCredentialUpsertion("scrambled", ScramMechanism.SCRAM_SHA_512, SCRAM_PASSWORD, iterations=4096)
        admin.alter_user_scram_credentials([user])
        yield it


@contextmanager
def secured_topic(secured: Secured, *counts: int) -> Iterator[Topic]:
    """A topic of its own with so many records in its partitions."""
    with KafkaAdminClient(bootstrap_servers=secured.broker.bootstrap) as admin:
        topic = Topic(f"t-{uuid.uuid4().hex[:8]}", admin, secured.broker.bootstrap).create(len(counts))
        topic.produce(*counts)
        yield topic
