"""Translates Airflow's ``kafka`` connection for kafka-python, confluent-kafka and Spark's Java client.

The official Kafka provider keeps librdkafka's configuration in the connection's ``extra``. This module

* translates the settings that a client needs to reach the brokers. It refuses a connection with a security setting
  that one of the clients cannot honour, and names the setting; it never drops one silently;
* ignores the settings that only consumers or producers use (``group.id``, ``auto.offset.reset``, …);
* names every other setting in a warning.

It reads certificates and keys, and passes their contents to Spark: Spark's machines need no copies of the files. A
Kerberos keytab is the exception.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Connection, Dataset, typed, used_as
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.kafka.sasl import SASL_KEYS, Sasl, read_sasl
from airflow_epochs.kafka.tls import TLS_KEYS, Refuse, Tls, read_tls
from airflow_epochs.secrecy import shown

if TYPE_CHECKING:
    import ssl

log = secrecy.logger(__name__)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TYPE = "kafka"
DEFAULT_PORT = 9092
DEFAULT_TIMEOUT_MS = 15_000

_USED = {"bootstrap.servers", "metadata.broker.list", "security.protocol", "client.id", "socket.timeout.ms"}
_FOR_OTHERS = {
    "acks",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "compression.type",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "error_cb",
    "group.id",
    "group.instance.id",
    "heartbeat.interval.ms",
    "isolation.level",
    "linger.ms",
    "logger",
    "max.poll.interval.ms",
    "on_commit",
    "session.timeout.ms",
    "stats_cb",
    "transactional.id",
}
_SECURITY = ("ssl", "sasl.", "security.", "enable.ssl", "enable.sasl", "https.", "oauth", "plugin.")
_ADDRESS = re.compile(r"(?:\w+://)?(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+)(?::(?P<port>\d{1,5}))?")
_HARMLESS = {"sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin"}


@dataclass(frozen=True, kw_only=True)
class KafkaAccess:
    """How every Kafka client reaches the brokers. ``timeout_s`` is the time limit of one question to them."""

    conn_id: str
    servers: tuple[str, ...]
    protocol: str
    timeout_s: float
    conn_type: str = TYPE
    client_id: str | None = None
    tls: Tls | None = None
    sasl: Sasl | None = field(default=None, repr=False)

    def client_options(self) -> dict[str, Any]:
        """Arguments for kafka-python's clients. They hold secrets: do not log them.

        Raises:
            Refused: The certificates cannot be used.
        """
        options: dict[str, Any] = {"bootstrap_servers": list(self.servers), "security_protocol": self.protocol}
        if self.client_id:
            options["client_id"] = self.client_id
        if self.tls:
            options["ssl_context"] = self._context(self.tls)
        return {**options, **(self.sasl.client_options() if self.sasl else {})}

    def librdkafka_options(self) -> dict[str, Any]:
        """Configuration for confluent-kafka's clients. It holds secrets: do not log it."""
        options: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.servers),
            "security.protocol": self.protocol,
            "socket.timeout.ms": int(self.timeout_s * 1000),
        }
        if self.client_id:
            options["client.id"] = self.client_id
        for part in (self.tls, self.sasl):
            options.update(part.librdkafka_options() if part else {})
        return options

    def spark_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source without secrets."""
        options = {"kafka.bootstrap.servers": ",".join(self.servers), "kafka.security.protocol": self.protocol}
        if self.client_id:
            options["kafka.client.id"] = self.client_id
        for part in (self.tls, self.sasl):
            options.update(part.spark_options() if part else {})
        return options

    def spark_secrets(self) -> dict[str, str]:
        """Options of Spark's Kafka source with secrets: do not log them."""
        return {**(self.tls.spark_secrets() if self.tls else {}), **(self.sasl.spark_secrets() if self.sasl else {})}

    def unreachable(self, what: str, addresses: Collection[str] = ()) -> NotApplied:
        """The error if no broker answers. It says so if the connection may belong to another service.

        ``addresses``: where brokers were looked for. The error says which of them the connection does not name.
        """
        if strangers := sorted({*addresses} - {*self.servers}):
            what += f" The connection does not name {', '.join(strangers)}: brokers sent it (advertised.listeners)."
        return typed(NotApplied(what, code=codes.KAFKA_UNREACHABLE), self.conn_id, self.conn_type, TYPE)

    def _context(self, tls: Tls) -> ssl.SSLContext:
        try:
            return tls.context()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise Refused(
                f"OpenSSL rejects the certificates of connection {self.conn_id!r}: {error}.",
                code=codes.KAFKA_CONNECTION,
                remedy="Check ssl.ca.*, ssl.certificate.* and ssl.key.* in the connection's extra. They must be in PEM "
                "form, and the key must belong to the certificate.",
            ) from error


def read_connection(connection: Connection) -> KafkaAccess:
    """Translate a connection of type ``kafka``. Reads the certificate files that it names; asks no broker.

    Raises:
        Refused: A setting is missing or wrong, or a client cannot honour it. The text names it and shows no secret.
    """
    with used_as(connection, TYPE):
        return _read(connection)


def _read(connection: Connection) -> KafkaAccess:
    settings = {str(key): value for key, value in connection.extra.items() if value is not None and value != ""}
    reader = _Reader(connection, settings)
    servers = _servers(connection, settings, reader.refuse)
    protocol = reader.text("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        reader.refuse(
            f"security.protocol is {protocol!r}, which Kafka does not have",
            f"Set security.protocol to one of {', '.join(PROTOCOLS)} in the connection's extra.",
        )
    _check_names(settings, protocol, reader)
    access = KafkaAccess(
        conn_id=connection.conn_id,
        conn_type=connection.conn_type,
        servers=servers,
        protocol=protocol,
        timeout_s=reader.milliseconds("socket.timeout.ms", DEFAULT_TIMEOUT_MS) / 1000,
        client_id=reader.text("client.id", "") or None,
        tls=read_tls(settings, reader.refuse) if protocol.endswith("SSL") else None,
        sasl=read_sasl(settings, connection, reader.refuse) if protocol.startswith("SASL") else None,
    )
    _warn_of_open_ways(access)
    return access


def dataset_of(connection: Connection, topic: str) -> Dataset:
    """What OpenLineage calls a topic: a cluster is known by the first broker that the connection names."""
    return Dataset(f"kafka://{read_connection(connection).servers[0]}", topic)


def _warn_of_open_ways(access: KafkaAccess) -> None:
    if access.tls and not access.tls.check_hostname:
        secrecy.warn_once(
            log, f"connection {access.conn_id}: ssl.endpoint.identification.algorithm is none: brokers are not verified"
        )
    remote = [server for server in access.servers if not secrecy.is_loopback(server.rpartition(":")[0])]
    if remote and access.protocol == "SASL_PLAINTEXT":
        secrecy.warn_once(
            log, f"connection {access.conn_id}: SASL_PLAINTEXT has no TLS: login and records travel readably"
        )


@dataclass(frozen=True)
class _Reader:
    connection: Connection
    settings: Mapping[str, Any] = field(repr=False)

    def refuse(self, what: str, remedy: str) -> NoReturn:
        of = f" of type {TYPE}" if self.connection.conn_type == TYPE else ""
        raise Refused(
            f"Connection {self.connection.conn_id!r}{of}: {what}.", code=codes.KAFKA_CONNECTION, remedy=remedy
        )

    def text(self, key: str, default: str) -> str:
        return str(self.settings.get(key, default)).strip()

    def milliseconds(self, key: str, default: int) -> int:
        text = self.text(key, str(default))
        if not text.isdigit() or int(text) < 100:
            self.refuse(
                f"{key} is {text!r}, which is not a number of milliseconds from 100 up",
                "Set it to a whole number, 100 or more, or leave it out.",
            )
        return int(text)


def _servers(connection: Connection, settings: Mapping[str, Any], refuse: Refuse) -> tuple[str, ...]:
    text = str(settings.get("bootstrap.servers") or settings.get("metadata.broker.list") or "")
    if not text and connection.host:
        text = f"{connection.host}:{connection.port}" if connection.port else connection.host
    servers = tuple(_server(part.strip(), refuse) for part in text.split(",") if part.strip())
    if not servers:
        refuse(
            "it names no broker",
            'Set {"bootstrap.servers": "host:port,..."} in the extra of the connection, or set its host and port.',
        )
    return servers


def _server(text: str, refuse: Refuse) -> str:
    """Turn ``[protocol://]host[:port]`` into ``host:port``, which every client takes."""
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match["port"] or DEFAULT_PORT) < 65_536:
        refuse(
            f"{shown(text)!r} is not the address of a broker",
            "Write each broker as host:port, with commas between several brokers.",
        )
    return f"{match['host']}:{match['port'] or DEFAULT_PORT}"


def _check_names(settings: Mapping[str, Any], protocol: str, reader: _Reader) -> None:
    known = _USED | _FOR_OTHERS | _HARMLESS | TLS_KEYS | SASL_KEYS
    unknown = sorted(settings.keys() - known)
    security = [key for key in unknown if key.startswith(_SECURITY)]
    if security:
        reader.refuse(
            f"the provider cannot apply {', '.join(security)} in both of its Kafka clients (kafka-python and Spark's)",
            "Take the setting out of the extra, or give this pipeline a connection without it. docs/kafka.md lists the "
            "supported settings.",
        )
    idle: set[str] = set()
    if not protocol.startswith("SASL"):
        idle |= settings.keys() & SASL_KEYS
    if not protocol.endswith("SSL"):
        idle |= settings.keys() & TLS_KEYS
    ignored = sorted({*unknown, *(settings.keys() & _HARMLESS), *idle})
    if ignored:
        secrecy.warn_once(
            log, f"connection {reader.connection.conn_id}: settings that have no effect here: {', '.join(ignored)}"
        )
