"""Translates the TLS settings of a ``kafka`` connection from librdkafka's names for each client.

kafka-python gets an SSLContext; confluent-kafka and Spark's Java client get PEM texts.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_epochs import secrecy

if TYPE_CHECKING:
    import ssl

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

TLS_KEYS = {
    "enable.ssl.certificate.verification",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
}
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")

Refuse = Callable[[str, str], NoReturn]
"""A function that raises an error, given what is wrong and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS settings with the contents of all files, as PEM.

    Without ``ca``, a client trusts its machine's certificate authorities. ``key`` is PKCS#8 without a password, a form
    that every client takes.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """The settings for kafka-python. Raises OSError or ValueError if OpenSSL rejects the certificates."""
        import ssl

        context = ssl.create_default_context(cadata=self.ca)
        context.check_hostname = self.check_hostname
        if self.certificate and self.key:
            # OpenSSL reads a certificate chain only from a file. Only the owner can read this one.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
                pair.write(self.certificate + "\n" + self.key)
                pair.flush()
                context.load_cert_chain(pair.name)
        return context

    def librdkafka_options(self) -> dict[str, str]:
        """Configuration for confluent-kafka's clients. It holds the private key: do not log it."""
        settings = {"ssl.ca.pem": self.ca, "ssl.certificate.pem": self.certificate, "ssl.key.pem": self.key}
        algorithm = {"ssl.endpoint.identification.algorithm": "https" if self.check_hostname else "none"}
        return algorithm | {name: value for name, value in settings.items() if value}

    def spark_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source without secrets."""
        options = {"kafka.ssl.endpoint.identification.algorithm": "https" if self.check_hostname else ""}
        if self.ca:
            options["kafka.ssl.truststore.type"] = "PEM"
            options["kafka.ssl.truststore.certificates"] = _one_line(self.ca)
        if self.certificate:
            options["kafka.ssl.keystore.type"] = "PEM"
            options["kafka.ssl.keystore.certificate.chain"] = _one_line(self.certificate)
        return options

    def spark_secrets(self) -> dict[str, str]:
        """The private key as an option of Spark's Kafka source, if there is one: do not log it."""
        return {"kafka.ssl.keystore.key": _one_line(self.key)} if self.key else {}


def read_tls(settings: Mapping[str, Any], refuse: Refuse) -> Tls:
    """Read the TLS settings and the files that they name.

    ``refuse`` raises the error for a wrong setting; it gets no secret.
    """
    if str(settings.get("enable.ssl.certificate.verification", "true")).lower() != "true":
        refuse(
            "enable.ssl.certificate.verification is off, but Spark's Kafka client always verifies certificates",
            "Set it to true. In ssl.ca.location or ssl.ca.pem, name the authority that signed the brokers' "
            "certificates.",
        )
    algorithm = str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower()
    if algorithm not in ("https", "none"):
        refuse(
            f"ssl.endpoint.identification.algorithm is {algorithm!r}, which Kafka does not have",
            "Set it to https or none.",
        )
    certificate, key = _client_pair(settings, refuse)
    secrecy.keep([key] if key else [])
    return Tls(ca=_authorities(settings, refuse), certificate=certificate, key=key, check_hostname=algorithm == "https")


def _authorities(settings: Mapping[str, Any], refuse: Refuse) -> str | None:
    if settings.get("ssl.ca.location") == "probe":
        return None  # in librdkafka: use the machine's authorities
    pem = _pem("ssl.ca", settings, refuse)
    return _certificates("ssl.ca", pem, refuse) if pem else None


def _client_pair(settings: Mapping[str, Any], refuse: Refuse) -> tuple[str | None, str | None]:
    if "ssl.keystore.location" in settings:
        return _from_pkcs12(settings, refuse)
    certificate, key = _pem("ssl.certificate", settings, refuse), _pem("ssl.key", settings, refuse)
    if bool(certificate) != bool(key):
        refuse(
            "it has a client certificate without a private key, or a private key without a certificate",
            "Set both ssl.certificate.location (or .pem) and ssl.key.location (or .pem), or neither.",
        )
    if not certificate or not key:
        return None, None
    return _certificates("ssl.certificate", certificate, refuse), _plain_key(key, settings, refuse)


def _pem(name: str, settings: Mapping[str, Any], refuse: Refuse) -> str | None:
    if f"{name}.pem" in settings:
        return str(settings[f"{name}.pem"])
    if f"{name}.location" not in settings:
        return None
    return _read(f"{name}.location", settings, refuse).decode("utf-8", errors="replace")


def _read(name: str, settings: Mapping[str, Any], refuse: Refuse) -> bytes:
    path = Path(str(settings[name]))
    try:
        return path.read_bytes()
    except OSError as error:
        pem = "ssl.certificate.pem and ssl.key.pem" if "keystore" in name else name.replace(".location", ".pem")
        refuse(
            f"the task cannot read the file {path} of {name}: {error.strerror}",
            "Put the file on every Airflow worker, and let the worker's user read it. Or take the setting out, and "
            f"paste the contents in PEM form into {pem}.",
        )


def _certificates(name: str, pem: str, refuse: Refuse) -> str:
    found: list[str] = _CERTIFICATE.findall(pem)
    if not found:
        refuse(
            f"{name} contains no certificate in PEM form",
            "Write each certificate as a block that begins with -----BEGIN CERTIFICATE-----.",
        )
    return "\n".join(found) + "\n"


def _plain_key(pem: str, settings: Mapping[str, Any], refuse: Refuse) -> str:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    password = settings.get("ssl.key.password")
    try:
        encrypted = "ENCRYPTED" in pem
        key = load_pem_private_key(pem.encode(), str(password).encode() if password and encrypted else None)
    except (ValueError, TypeError):
        refuse(
            "the private key is not in PEM form, or ssl.key.password does not decrypt it",
            "Give the key in PEM form. If it is encrypted, set ssl.key.password to its password.",
        )
    return _pkcs8(key)


def _pkcs8(key: PrivateKeyTypes) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _from_pkcs12(settings: Mapping[str, Any], refuse: Refuse) -> tuple[str, str]:
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_key_and_certificates

    password = str(settings.get("ssl.keystore.password", "")).encode() or None
    try:
        data = _read("ssl.keystore.location", settings, refuse)
        key, certificate, chain = load_key_and_certificates(data, password)
    except ValueError:
        key = certificate = None
        chain = []
    if key is None or certificate is None:
        refuse(
            "the file of ssl.keystore.location does not contain a private key and its certificate, or "
            "ssl.keystore.password does not decrypt it",
            "Give a PKCS#12 file that contains both, and its password.",
        )
    return "".join(c.public_bytes(Encoding.PEM).decode() for c in (certificate, *chain)), _pkcs8(key)


def _one_line(pem: str) -> str:
    """``pem`` with spaces in place of line ends: Java's client takes it, and a properties file keeps it whole."""
    return " ".join(pem.split())
