"""Signatures of ledger records: HMAC-SHA256 (RFC 2104) with keys that only those have who may write records.

A signature covers the record, the ledger that it belongs to and its place there: a sound record that lies anywhere else
has no sound signature.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

RANDOM_KEY = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
"""The command that makes a key, for the texts of errors."""
KEY_LENGTH_MIN = 16
"""Shorter keys are used, with a warning: who can read a record can try them out."""


@dataclass(frozen=True)
class Keys:
    """The keys of a ledger, newest first: the newest one signs, and what any of them has signed is believed."""

    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, password: str | None) -> Keys:
        """Keys separated by commas, as Airflow's ``fernet_key`` has them; none if there is no password."""
        return cls(tuple(key for part in (password or "").split(",") if (key := part.strip())))

    def __bool__(self) -> bool:
        return bool(self.secrets)

    @property
    def is_weak(self) -> bool:
        """Whether one of them is so short that it can be guessed from a record."""
        return any(len(key) < KEY_LENGTH_MIN for key in self.secrets)

    @property
    def newest(self) -> Keys:
        return Keys(self.secrets[:1])

    def sign(self, message: bytes) -> str:
        """64 hexadecimal digits."""
        return _hmac(self.secrets[0], message)

    def fit(self, message: bytes, signature: str) -> bool:
        """Whether one of the keys has signed the message."""
        return any(hmac.compare_digest(_hmac(key, message), signature) for key in self.secrets)


NO_KEYS = Keys()
"""Of a ledger that is not signed."""


def message(ledger_id: str, key: str, body: bytes) -> bytes:
    """What is signed. None of the parts before the body can have a line break."""
    return b"\n".join([b"airflow-epochs ledger record", ledger_id.encode(), key.encode(), body])


def _hmac(key: str, message: bytes) -> str:
    return hmac.new(key.encode(), message, hashlib.sha256).hexdigest()
