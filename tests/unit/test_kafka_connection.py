"""The translation of Airflow's ``kafka`` connection. That it is right is shown on real brokers elsewhere."""

from __future__ import annotations

import itertools
import logging
import re
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Refused
from airflow_epochs.kafka.connection import KafkaAccess, read_connection
from airflow_epochs.kafka.network import network_client
from tests.support.kafka_certificates import Authority, pem_of_key

SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "s3cret"}


def read(extra: dict[str, Any], **connection: Any) -> KafkaAccess:
    extra = {"bootstrap.servers": "kafka:9092", **extra}
    return read_connection(Connection(conn_id="k", conn_type="kafka", extra=extra, **connection))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("test authority")


# --- reaching the brokers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "servers"),
    [
        ("a:1, b:2", ("a:1", "b:2")),
        ("a", ("a:9092",)),
        ("SASL_SSL://a.b-c:9094", ("a.b-c:9094",)),
        ("[::1]:9093,[::2]", ("[::1]:9093", "[::2]:9092")),
    ],
)
def test_brokers_are_given_as_host_and_port(written: str, servers: tuple[str, ...]) -> None:
    access = read({"bootstrap.servers": written})
    assert access.servers == servers
    assert access.client_options()["bootstrap_servers"] == list(servers)
    assert access.spark_options()["kafka.bootstrap.servers"] == ",".join(servers)


def test_host_and_port_of_the_connection_serve_where_extra_names_no_brokers() -> None:
    assert read({"bootstrap.servers": ""}, host="h", port=7).servers == ("h:7",)
    assert read({"bootstrap.servers": None, "metadata.broker.list": "m:1"}, host="h").servers == ("m:1",)
    assert read({"bootstrap.servers": None}, host="a:1,b:2").servers == ("a:1", "b:2")


@pytest.mark.parametrize("written", ["", "a:b", "a:99999", "a:0", "::1", "a b:1", "http://a/b:1"])
def test_a_connection_without_usable_brokers_is_refused(written: str) -> None:
    with pytest.raises(Refused, match=r"Connection 'k' of type kafka: (it names no broker|.* is not the address)"):
        read({"bootstrap.servers": written})


def test_the_time_to_wait_for_an_answer_is_the_connections() -> None:
    assert read({}).timeout_s == 15
    assert read({"socket.timeout.ms": 2500}).timeout_s == 2.5
    with pytest.raises(Refused, match=r"socket\.timeout\.ms is 'soon'"):
        read({"socket.timeout.ms": "soon"})


def test_the_client_id_goes_to_both_clients() -> None:
    access = read({"client.id": "me"})
    assert access.client_options()["client_id"] == access.spark_options()["kafka.client.id"] == "me"


# --- names ----------------------------------------------------------------------------------------------------


def test_settings_of_consumers_are_ignored_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    access = read({"group.id": "g", "auto.offset.reset": "latest", "enable.auto.commit": True, "error_cb": "a.b"})
    assert not caplog.records
    assert access.spark_options().keys() == {"kafka.bootstrap.servers", "kafka.security.protocol"}


def test_a_slow_step_of_kafka_python_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafka.net import selector

    async def step() -> int:
        return 7

    clock = itertools.count()
    monkeypatch.setattr(selector, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    client = network_client({}, {"bootstrap_servers": "127.0.0.1:1"})
    assert client._net.run(step) == 7
    client.close()
    assert caplog.messages == []


def test_settings_without_effect_are_named_but_not_their_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read({"statistics.interval.ms": 5, "sasl.password": "s3cret", "ssl.ca.location": "/x"})
    assert "sasl.password, ssl.ca.location, statistics.interval.ms" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "ssl.crl.location",
        "ssl.cipher.suites",
        "sasl.oauthbearer.method",
        "enable.sasl.oauthbearer.unsecure.jwt",
        "ssl_x",
    ],
)
def test_a_security_setting_that_one_client_cannot_honour_is_refused_by_name(name: str) -> None:
    with pytest.raises(Refused, match=f"cannot apply {name} in both"):
        read({name: "s3cret"})


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(Refused, match=r"security\.protocol is 'TLS'"):
        read({"security.protocol": "tls"})


# --- SASL -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_user_and_password_go_to_both_clients_and_the_password_only_into_secrets(name: str) -> None:
    extra = {
        "security.protocol": "sasl_plaintext",
        name: "scram-sha-512",
        "sasl.username": "u",
        "sasl.password": "s3cret",
    }
    access = read(extra)
    assert access.client_options() == {
        "bootstrap_servers": ["kafka:9092"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "s3cret",
    }
    assert access.spark_options() == {
        "kafka.bootstrap.servers": "kafka:9092",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
    }
    assert access.spark_secrets() == {
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="s3cret";'
    }
    assert "s3cret" not in repr(access)


def test_login_and_password_of_the_connection_serve_too() -> None:
    extra = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    options = read(extra, login="u", password="s3cret").client_options()
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "s3cret")


def test_quotes_and_backslashes_in_a_password_do_not_end_the_jaas_string() -> None:
    secret = read({**SASL, "sasl.password": 'a"b\\c\nd;'}).spark_secrets()["kafka.sasl.jaas.config"]
    assert secret.endswith(r' password="a\"b\\c\nd;";')


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sasl.mechanism": None}, "sasl.mechanism is missing"),
        ({"sasl.mechanism": "OAUTHBEARER"}, r"sasl.mechanism is 'OAUTHBEARER'(.|\n)*not support OAUTHBEARER"),
        ({"sasl.username": None}, "PLAIN needs a user and a password"),
        ({"sasl.password": ""}, "PLAIN needs a user and a password"),
    ],
)
def test_an_incomplete_login_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        read({**SASL, **change})


def test_kerberos_names_the_service_and_takes_a_keytab_or_the_ticket_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "svc"}
    with pytest.raises(Refused, match="needs the Python package gssapi"):
        read(extra)
    (tmp_path / "gssapi.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    access = read(extra)
    assert access.client_options()["sasl_kerberos_service_name"] == "svc"
    assert access.spark_options()["kafka.sasl.kerberos.service.name"] == "svc"
    assert access.spark_secrets()["kafka.sasl.jaas.config"] == (
        'com.sun.security.auth.module.Krb5LoginModule required useTicketCache="true";'
    )
    keytab = read({**extra, "sasl.kerberos.keytab": "/k", "sasl.kerberos.principal": "p@R"})
    assert 'keyTab="/k" principal="p@R";' in keytab.spark_secrets()["kafka.sasl.jaas.config"]
    with pytest.raises(Refused, match=r"only one of sasl\.kerberos\.keytab and sasl\.kerberos\.principal"):
        read({**extra, "sasl.kerberos.keytab": "/k"})


# --- TLS ------------------------------------------------------------------------------------------------------


def test_certificates_go_to_spark_by_value_on_one_line_and_the_key_only_into_secrets(
    tmp_path: Path, authority: Authority
) -> None:
    pair = authority.issue("client")
    for name, text in (("ca", authority.pem), ("cert", pair.certificate_pem), ("key", pair.key_pem("pass"))):
        (tmp_path / name).write_text(f"# made for a test\n{text}")
    access = read(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": str(tmp_path / "ca"),
            "ssl.certificate.location": str(tmp_path / "cert"),
            "ssl.key.location": str(tmp_path / "key"),
            "ssl.key.password": "pass",
        }
    )
    context = access.client_options()["ssl_context"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert [int(ca["serialNumber"], 16) for ca in context.get_ca_certs()] == [authority.certificate.serial_number]
    assert access.spark_options() == {
        "kafka.bootstrap.servers": "kafka:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.endpoint.identification.algorithm": "https",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": " ".join(authority.pem.split()),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": " ".join(pair.certificate_pem.split()),
    }
    assert access.spark_secrets() == {"kafka.ssl.keystore.key": " ".join(pair.key_pem().split())}
    assert "PRIVATE" not in repr(access)


def test_pem_by_value_and_keys_of_any_form_come_out_as_plain_pkcs8(authority: Authority) -> None:
    pair = authority.issue("client")
    base = {"security.protocol": "SSL", "ssl.certificate.pem": pair.certificate_pem}
    for key in (pair.key_pem(), pair.key_pem("pass"), pem_of_key(pair.key, traditional=True)):
        access = read({**base, "ssl.key.pem": key, "ssl.key.password": "pass"})
        assert access.spark_secrets() == {"kafka.ssl.keystore.key": " ".join(pair.key_pem().split())}


def test_a_pkcs12_keystore_serves_as_certificate_and_key(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("client")
    store = pkcs12.serialize_key_and_certificates(
        b"me", pair.key, pair.certificate, [authority.certificate], BestAvailableEncryption(b"pass")
    )
    (tmp_path / "store.p12").write_bytes(store)
    extra = {"security.protocol": "SSL", "ssl.keystore.location": str(tmp_path / "store.p12")}
    access = read({**extra, "ssl.keystore.password": "pass"})
    assert access.spark_options()["kafka.ssl.keystore.certificate.chain"] == " ".join(
        (pair.certificate_pem + authority.pem).split()
    )
    assert access.spark_secrets() == {"kafka.ssl.keystore.key": " ".join(pair.key_pem().split())}
    with pytest.raises(Refused, match=r"ssl\.keystore\.password does not decrypt it"):
        read({**extra, "ssl.keystore.password": "wrong"})


def test_a_keystore_that_is_not_on_the_worker_can_be_given_as_the_settings_that_the_error_names(
    authority: Authority,
) -> None:
    pair = authority.issue("client")
    extra = {"security.protocol": "SSL", "ssl.keystore.location": "/no/such.p12"}
    with pytest.raises(Refused, match=r"the file /no/such\.p12 of ssl\.keystore\.location: No such file") as refused:
        read(extra)
    assert "take the setting out" in refused.value.remedy
    names = re.findall(r"ssl\.\w+\.pem", refused.value.remedy)
    del extra["ssl.keystore.location"]
    access = read({**extra, **dict(zip(names, (pair.certificate_pem, pair.key_pem()), strict=True))})
    assert access.spark_secrets() == {"kafka.ssl.keystore.key": " ".join(pair.key_pem().split())}


def test_host_names_are_checked_unless_the_connection_says_none(authority: Authority) -> None:
    extra = {"security.protocol": "SSL", "ssl.ca.pem": authority.pem}
    access = read({**extra, "ssl.endpoint.identification.algorithm": "none"})
    assert not access.client_options()["ssl_context"].check_hostname
    assert access.client_options()["ssl_context"].verify_mode is ssl.CERT_REQUIRED
    assert access.spark_options()["kafka.ssl.endpoint.identification.algorithm"] == ""


@pytest.mark.parametrize("extra", [{}, {"ssl.ca.location": "probe"}])
def test_without_a_named_authority_each_clients_own_are_used(extra: dict[str, str]) -> None:
    access = read({"security.protocol": "SSL", **extra})
    assert "kafka.ssl.truststore.certificates" not in access.spark_options()
    assert access.client_options()["ssl_context"].verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"enable.ssl.certificate.verification": False}, "enable.ssl.certificate.verification is off"),
        ({"ssl.endpoint.identification.algorithm": "dns"}, "algorithm is 'dns'"),
        (
            {"ssl.ca.location": "/no/such/file"},
            r"cannot read the file /no/such/file of ssl\.ca\.location: No such file",
        ),
        ({"ssl.ca.pem": "junk"}, r"ssl\.ca contains no certificate in PEM form"),
        ({"ssl.key.pem": "s3cret"}, "a private key without a certificate"),
        ({"ssl.key.pem": "s3cret", "ssl.certificate.pem": "CERT"}, "the private key is not in PEM form"),
    ],
)
def test_tls_settings_that_cannot_work_are_refused(extra: dict[str, Any], complaint: str, authority: Authority) -> None:
    extra = {key: authority.pem if value == "CERT" else value for key, value in extra.items()}
    with pytest.raises(Refused, match=complaint) as refused:
        read({"security.protocol": "SSL", **extra})
    assert "s3cret" not in str(refused.value)


def test_a_wrong_or_missing_key_password_is_refused(authority: Authority) -> None:
    pair = authority.issue("client")
    extra = {"security.protocol": "SSL", "ssl.certificate.pem": pair.certificate_pem, "ssl.key.pem": pair.key_pem("a")}
    for password in ({}, {"ssl.key.password": "b"}):
        with pytest.raises(Refused, match=r"ssl\.key\.password does not decrypt it"):
            read({**extra, **password})


def test_a_key_of_another_certificate_is_refused_when_it_is_used(authority: Authority) -> None:
    mixed = {"ssl.certificate.pem": authority.issue("a").certificate_pem, "ssl.key.pem": authority.issue("b").key_pem()}
    with pytest.raises(Refused, match="OpenSSL rejects the certificates of connection 'k'"):
        read({"security.protocol": "SSL", **mixed}).client_options()
