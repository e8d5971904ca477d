"""The identity of an attempt, and what is derived from it."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NoReturn, TypedDict

from airflow_epochs.names import validated_name

_NONCE = re.compile(r"[0-9a-f]{32}")
_Parts = tuple[str, int, int, str]


class TransactionId(str):
    """``<pipeline>/<epoch>/<attempt>/<nonce>``, chosen before the first effect and never changed.

    The id is text that knows its parts. It is a ``str``, so that it equals its text wherever that was read, and so that
    records, logs and errors show it as text. ``str(txn)`` is a plain ``str``: pass that to other libraries.

    The nonce (128 random bits, hex) makes ids unique even if a ledger restored from a backup issues the same
    numbers again for other data.
    """

    pipeline: str
    epoch: int
    attempt: int
    nonce: str

    def __new__(cls, pipeline: str, epoch: int, attempt: int, nonce: str) -> TransactionId:
        validated_name("pipeline", pipeline)
        txn = super().__new__(cls, f"{pipeline}/{epoch}/{attempt}/{nonce}")
        if epoch < 1 or attempt < 1 or not _NONCE.fullmatch(nonce):
            raise ValueError(f"not a transaction id: {txn!r}")
        txn.__dict__.update(pipeline=pipeline, epoch=epoch, attempt=attempt, nonce=nonce)
        return txn

    def __reduce__(self) -> tuple[type[TransactionId], _Parts]:
        return TransactionId, self._parts

    def __deepcopy__(self, memo: object) -> TransactionId:
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a transaction id is never changed, nor its {name}")

    def __lt__(self, other: str) -> bool:
        return self._parts < _parts_of(other)

    def __le__(self, other: str) -> bool:
        return self._parts <= _parts_of(other)

    def __gt__(self, other: str) -> bool:
        return self._parts > _parts_of(other)

    def __ge__(self, other: str) -> bool:
        return self._parts >= _parts_of(other)

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
        return self.with_nonce(drawn[:8] + _seal(drawn[:8]) + drawn[8:])

    @property
    def is_fence(self) -> bool:
        """Whether it is the fence of another transaction."""
        return is_of_fence(self.token)

    def with_nonce(self, nonce: str) -> TransactionId:
        """The id with the same numbers and another nonce."""
        return TransactionId(self.pipeline, self.epoch, self.attempt, nonce)

    @property
    def _parts(self) -> _Parts:
        """What ids are ordered by: epoch 10 comes after epoch 9."""
        return self.pipeline, self.epoch, self.attempt, self.nonce


def _parts_of(other: str) -> _Parts:
    """The parts of another id. Raises TypeError for text: it would be ordered by its letters."""
    if not isinstance(other, TransactionId):
        raise TypeError(f"a transaction id has no order with {other!r}")
    return other._parts


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
    if txn != text:
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
