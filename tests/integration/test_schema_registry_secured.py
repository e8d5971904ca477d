"""A schema registry behind TLS: passwords, tokens, certificates; and what a user reads if one of them is wrong."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from ssl import SSLCertVerificationError
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from airflow_epochs import secrecy
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.hooks.epochs import connection
from airflow_epochs.kafka.schema_registry import asking, id_of, schemas_of
from airflow_epochs.schemas import WriterSchema
from stack.registry import SchemaRegistry
from tests.support.registry_gate import (
    BASIC,
    BEARER,
    CLIENT,
    CLIENT_SECRET,
    PASSWORD,
    TOKEN,
    USER,
    Gate,
    gate,
)

pytestmark = pytest.mark.jvm

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "order_id", "type": "string"}]})
STATIC = {
    "bearer.auth.credentials.source": "STATIC_TOKEN",
    "bearer.auth.logical.cluster": "lsrc-1",
    "bearer.auth.token": TOKEN,
}


@pytest.fixture
def subject(client: SchemaRegistryClient) -> str:
    name = f"secured-{uuid.uuid4().hex}"
    client.register_schema(name, Schema(ORDER, "AVRO"))
    return name


@pytest.fixture
def by_password(tmp_path: Path, registry: SchemaRegistry) -> Iterator[Gate]:
    with gate(tmp_path / "gate", registry.url, entry=BASIC) as door:
        yield door


@pytest.fixture
def by_token(tmp_path: Path, registry: SchemaRegistry) -> Iterator[Gate]:
    with gate(tmp_path / "gate", registry.url, entry=BEARER) as door:
        yield door


def reached(door: Gate, login: str | None = None, password: str | None = None, **extra: Any) -> Connection:
    """The connection of a user who trusts the registry, if ``extra`` does not say otherwise."""
    settings = {"ssl.ca.location": door.ca, "max.retries": 0, **extra}
    return Connection(
        conn_id="r",
        conn_type="schema_registry",
        host=door.url,
        login=login,
        password=password,
        extra={name: value for name, value in settings.items() if value is not None},
    )


def oauth(door: Gate, secret: str) -> dict[str, str]:
    return {
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.issuer.endpoint.url": f"{door.url}/token",
        "bearer.auth.client.id": CLIENT,
        "bearer.auth.client.secret": secret,
        "bearer.auth.scope": "registry",
    }


def schemas(of: Connection, subject: str) -> list[WriterSchema]:
    return list(schemas_of(of, [subject]).values())


def failure(kind: type[EpochError], code: str, of: Connection, subject: str) -> EpochError:
    with pytest.raises(kind) as failed:
        schemas_of(of, [subject])
    assert failed.value.code and failed.value.code.name == code
    return failed.value


def test_a_password_and_the_certificates_of_an_own_authority_open_a_registry(by_password: Gate, subject: str) -> None:
    entered = reached(by_password, USER, PASSWORD)
    [schema] = schemas(entered, subject)
    assert json.loads(schema.text)["name"] == "Order"
    order = WriterSchema(kind="AVRO", text=ORDER)
    assert id_of(entered, f"{subject}-2", order, register=True) == id_of(entered, subject, order, register=False)


def test_a_wrong_password_is_refused_and_named(by_password: Gate, subject: str) -> None:
    failed = failure(Refused, "EPOCHS-REGISTRY-REFUSED", reached(by_password, USER, "another"), subject)
    assert "password" in str(failed)


def test_a_certificate_that_nobody_trusts_is_refused_until_the_connection_names_its_authority(
    by_password: Gate, subject: str
) -> None:
    without = reached(by_password, USER, PASSWORD, **{"ssl.ca.location": None})
    failed = failure(Refused, "EPOCHS-REGISTRY-CONNECTION", without, subject)
    assert "certificate" in failed.what and "`ssl.ca.location`" in str(failed)
    assert len(schemas(reached(by_password, USER, PASSWORD), subject)) == 1


@pytest.mark.parametrize("verify_code", [10, 62], ids=["it has expired", "it names another host"])
def test_a_certificate_that_more_authorities_would_not_mend_is_waited_for(verify_code: int) -> None:
    flaw = SSLCertVerificationError("no")
    flaw.verify_code = verify_code
    with pytest.raises(NotApplied) as failed, asking(Connection(conn_id="r", conn_type="schema_registry"), "subjects"):
        raise OSError("connect") from flaw
    assert "ssl.ca.location" not in str(failed.value)


def test_a_certificate_of_the_client_opens_a_registry_that_asks_for_one(
    tmp_path: Path, registry: SchemaRegistry, subject: str
) -> None:
    with gate(tmp_path / "gate", registry.url, needs_certificate=True) as door:
        failed = failure(NotApplied, "EPOCHS-REGISTRY-UNREACHABLE", reached(door), subject)
        assert "certificate" in failed.what.lower()
        own = {"ssl.certificate.location": door.certificate, "ssl.key.location": door.key}
        assert len(schemas(reached(door, **own), subject)) == 1


def test_a_token_opens_a_registry(by_token: Gate, subject: str) -> None:
    assert len(schemas(reached(by_token, **STATIC), subject)) == 1
    failure(Refused, "EPOCHS-REGISTRY-REFUSED", reached(by_token, **{**STATIC, "bearer.auth.token": "old"}), subject)


def test_a_token_is_fetched_from_the_server_of_tokens(
    by_token: Gate, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", by_token.ca)  # Confluent's client asks that server with no other setting
    assert len(schemas(reached(by_token, **oauth(by_token, CLIENT_SECRET)), subject)) == 1


def test_a_server_of_tokens_that_gives_none_is_named_with_the_settings_to_correct(
    by_token: Gate, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", by_token.ca)
    wrong = reached(by_token, **oauth(by_token, "wrong"))
    failed = failure(NotApplied, "EPOCHS-REGISTRY-UNREACHABLE", wrong, subject)
    assert "invalid_client" in failed.what and "`bearer.auth.client.secret`" in str(failed)


def test_no_text_shows_a_password_that_the_extra_has(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"basic.auth.user.info": f"{USER}:{PASSWORD}", "bearer.auth.client.secret": CLIENT_SECRET}
    told = {"conn_type": "schema_registry", "host": "https://r", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_R", json.dumps(told))
    connection("r")
    assert not {PASSWORD, CLIENT_SECRET} & set(secrecy.scrubbed(f"{PASSWORD} {CLIENT_SECRET}").split())
