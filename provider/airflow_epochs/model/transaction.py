"""The identity of an attempt, and what is derived from it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypedDict

from airflow_epochs.names import validated_name

_NONCE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, order=True)
class TransactionId:
    """``<pipeline>/<epoch>/<attempt>/<nonce>``, chosen before the first effect and never changed.

    The nonce (128 random bits, hex) makes ids unique even if a ledger restored from a backup issues the same
    numbers again for other data.
    """

    pipeline: str
    epoch: int
    attempt: int
    nonce: str

    def __post_init__(self) -> None:
        validated_name("pipeline", self.pipeline)
        if self.epoch < 1 or self.attempt < 1 or not _NONCE.fullmatch(self.nonce):
            raise ValueError(f"not a transaction id: {self!r}")

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.epoch}/{self.attempt}/{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """The inverse of ``str``. Raises ValueError for every other text, also for ``p/01/1/…``."""
        return _parsed(text)

    @property
    def token(self) -> int:
        """The first 63 bits of the nonce: as many as a Delta ``SetTransaction`` version, a signed long, can hold."""
        return int(self.nonce[:16], 16) >> 1

    @property
    def fence(self) -> TransactionId:
        """What a sink shows once this waived transaction is not to land any more. It follows from the transaction."""
        drawn = hashlib.sha256(f"fence {self}".encode()).hexdigest()[:24]
        return replace(self, nonce=drawn[:8] + _seal(drawn[:8]) + drawn[8:])

    @property
    def is_fence(self) -> bool:
        """Whether it is the fence of another transaction."""
        return is_of_fence(self.token)


def is_of_fence(token: int) -> bool:
    """Whether the token is a fence's, which is its own witness. Of 2^31 other tokens, one would be taken for such."""
    text = f"{token << 1:016x}"
    return int(text[8:], 16) >> 1 == int(_seal(text[:8]), 16) >> 1


def _seal(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@lru_cache(maxsize=1024)
def _parsed(text: str) -> TransactionId:
    """Cached, because a task meets few ids, each in many records."""
    pipeline, epoch, attempt, nonce = text.split("/")
    txn = TransactionId(pipeline, int(epoch), int(attempt), nonce)
    if str(txn) != text:
        raise ValueError(f"not a transaction id: {text!r}")
    return txn


class AttemptFields(TypedDict):
    """The fields by which an ``EpochError`` names an attempt."""

    pipeline: str
    epoch: int
    attempt: int


def attempt_fields(txn: TransactionId) -> AttemptFields:
    """The keyword arguments of an ``EpochError`` that name the attempt of ``txn``."""
    return {"pipeline": txn.pipeline, "epoch": txn.epoch, "attempt": txn.attempt}


def seed_of(pipeline: str, epoch: int, ledger_id: str) -> int:
    """A seed of 31 bits, the same for every attempt of an epoch."""
    digest = hashlib.sha256(f"{ledger_id}/{pipeline}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
