"""Signatures of ledger records: HMAC-SHA256 (RFC 2104). Only those who may write records have the keys.

A signature covers the record, its ledger's id and its key in the ledger. So the signature of a record that was copied
to another key or another ledger does not fit. Only the record of a dry run may be older than its ledger: its signature
covers no id.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

RANDOM_KEY = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
"""A shell command that prints a new key. Errors show it."""
KEY_LENGTH_MIN = 16
"""A shorter key is used, with a warning: a reader of a record can guess it by trying."""


@dataclass(frozen=True)
class Keys:
    """The keys of a ledger, newest first. The newest one signs; a signature of any of them is believed."""

    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, password: str | None) -> Keys:
        """The keys in a password, separated by commas as in Airflow's ``fernet_key``; empty if there is no password."""
        return cls(tuple(key for part in (password or "").split(",") if (key := part.strip())))

    def __bool__(self) -> bool:
        return bool(self.secrets)

    @property
    def is_weak(self) -> bool:
        """Whether one of the keys is shorter than ``KEY_LENGTH_MIN``."""
        return any(len(key) < KEY_LENGTH_MIN for key in self.secrets)

    @property
    def newest(self) -> Keys:
        """The key that signs, alone; empty if there is no key."""
        return Keys(self.secrets[:1])

    def sign(self, message: bytes) -> str:
        """The newest key's signature: 64 hexadecimal digits. There must be a key."""
        return _hmac(self.secrets[0], message)

    def fit(self, message: bytes, signature: str) -> bool:
        """Whether one of the keys has made ``signature``. Takes the same time for every wrong signature."""
        return any(hmac.compare_digest(_hmac(key, message), signature) for key in self.secrets)


NO_KEYS = Keys()
"""The keys of a ledger that is not signed."""


def message(ledger_id: str, key: str, body: bytes) -> bytes:
    """The bytes that are signed. A line break ends each part before the body; no such part can contain one."""
    return b"\n".join([b"airflow-epochs ledger record", ledger_id.encode(), key.encode(), body])


def _hmac(key: str, message: bytes) -> str:
    return hmac.new(key.encode(), message, hashlib.sha256).hexdigest()
