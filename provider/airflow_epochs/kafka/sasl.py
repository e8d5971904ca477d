"""Translates the SASL settings of a ``kafka`` connection from librdkafka's names to each client's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_epochs import secrecy
from airflow_epochs.contracts import Connection
from airflow_epochs.kafka.tls import Refuse

SASL_KEYS = {
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.password",
    "sasl.username",
}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}


@dataclass(frozen=True, kw_only=True)
class Sasl:
    """The login at the brokers: user and password; for GSSAPI (Kerberos), a keytab or the ticket cache."""

    mechanism: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    service: str = "kafka"
    principal: str | None = None
    keytab: str | None = None

    def client_options(self) -> dict[str, Any]:
        """Arguments for kafka-python's clients. They hold the password: do not log them."""
        if self.mechanism == "GSSAPI":  # kafka-python then uses the process's ticket cache
            return {"sasl_mechanism": self.mechanism, "sasl_kerberos_service_name": self.service}
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }

    def librdkafka_options(self) -> dict[str, str]:
        """Configuration for confluent-kafka's clients. It holds the password: do not log it."""
        settings = {"sasl.mechanisms": self.mechanism, "sasl.username": self.username, "sasl.password": self.password}
        if self.mechanism == "GSSAPI":
            settings |= {
                "sasl.kerberos.service.name": self.service,
                "sasl.kerberos.principal": self.principal,
                "sasl.kerberos.keytab": self.keytab,
            }
        return {name: value for name, value in settings.items() if value}

    def spark_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source without secrets."""
        options = {"kafka.sasl.mechanism": self.mechanism}
        if self.mechanism == "GSSAPI":
            options["kafka.sasl.kerberos.service.name"] = self.service
        return options

    def spark_secrets(self) -> dict[str, str]:
        """The JAAS configuration for Java's client. It holds the password: do not log it."""
        settings: dict[str, str]
        if self.mechanism != "GSSAPI":
            settings = {"username": self.username or "", "password": self.password or ""}
        elif self.keytab and self.principal:
            settings = {"useKeyTab": "true", "storeKey": "true", "keyTab": self.keytab, "principal": self.principal}
        else:
            settings = {"useTicketCache": "true"}
        text = " ".join(f"{key}={_quoted(value)}" for key, value in settings.items())
        return {"kafka.sasl.jaas.config": f"{_LOGIN_MODULES[self.mechanism]} required {text};"}


def read_sasl(settings: Mapping[str, Any], connection: Connection, refuse: Refuse) -> Sasl:
    """Read the SASL settings. Without a user or password there, the connection's own login or password applies.

    ``refuse`` raises the error for a wrong setting; it gets no secret.
    """
    mechanism = str(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "").strip().upper()
    if mechanism not in _LOGIN_MODULES:
        refuse(
            f"sasl.mechanism is {mechanism!r}, which the provider does not support"
            if mechanism
            else "sasl.mechanism is missing",
            f"Set sasl.mechanism to one of {', '.join(_LOGIN_MODULES)}. The provider does not support OAUTHBEARER.",
        )
    if mechanism == "GSSAPI":
        return _read_kerberos(settings, refuse)
    username = settings.get("sasl.username") or connection.login
    password = settings.get("sasl.password") or connection.password
    if not username or not password:
        refuse(
            f"{mechanism} needs a user and a password, and the connection lacks one of them",
            "Set sasl.username and sasl.password in the connection's extra, or the connection's login and password.",
        )
    return Sasl(mechanism=mechanism, username=str(username), password=str(password))


def _read_kerberos(settings: Mapping[str, Any], refuse: Refuse) -> Sasl:
    from importlib.util import find_spec

    if find_spec("gssapi") is None:
        refuse(
            "GSSAPI (Kerberos) needs the Python package gssapi, which is not installed",
            "Install gssapi on the machines where Airflow's tasks run.",
        )
    keytab, principal = settings.get("sasl.kerberos.keytab"), settings.get("sasl.kerberos.principal")
    if bool(keytab) != bool(principal):
        refuse(
            "it has only one of sasl.kerberos.keytab and sasl.kerberos.principal",
            "Set both, or neither to use the ticket cache. The keytab must lie on Spark's machines under this path.",
        )
    return Sasl(
        mechanism="GSSAPI",
        service=str(settings.get("sasl.kerberos.service.name", "kafka")),
        principal=str(principal) if principal else None,
        keytab=str(keytab) if keytab else None,
    )


def _quoted(value: str) -> str:
    return f'"{secrecy.jaas_escaped(value)}"'
