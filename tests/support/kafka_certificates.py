"""A certificate authority for tests: elliptic-curve keys, made in milliseconds."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


def pem_of_key(key: ec.EllipticCurvePrivateKey, password: str | None = None, *, traditional: bool = False) -> str:
    form = PrivateFormat.TraditionalOpenSSL if traditional else PrivateFormat.PKCS8
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, form, encryption).decode()


@dataclass(frozen=True)
class Pair:
    """A key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        return pem_of_key(self.key, password)


class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    def __init__(self, name: str) -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(self._name, self._key.public_key(), authority=True)
        self.pem = self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, name: str) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return Pair(key, self._sign(subject, key.public_key(), authority=False))

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
