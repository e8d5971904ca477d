"""How a record is written: JSON with a checksum as its first member.

Decoding ignores fields it does not know, so that a newer writer of the same format may add some. A record of a
newer *format* is told apart from a damaged one.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from airflow_epochs.model import FORMAT

R = TypeVar("R")

_DIGEST = 16
_HEAD = b'{"sha256":"'
_SEPARATOR = b'",'
_HEAD_END = len(_HEAD) + _DIGEST + len(_SEPARATOR)


class NewerFormat(ValueError):
    """The record was written by a newer version of this package."""

    def __init__(self, format: int) -> None:
        self.format = format
        super().__init__(f"format {format}")


class _Format(msgspec.Struct):
    format: int


def encode(record: object) -> bytes:
    """JSON of a record, with 64 bits of the SHA-256 of the rest in front: a flipped bit must not become a decision."""
    body = msgspec.json.encode(record)
    return _HEAD + _digest(body) + _SEPARATOR + body[1:]


def decode(value: bytes, kind: type[R]) -> R:
    """The record in ``value``.

    Raises:
        NewerFormat: ``format`` is higher than this version's.
        ValueError: Truncated, altered, or not a record of this kind.
    """
    body = b"{" + value[_HEAD_END:]
    if value[:_HEAD_END] != _HEAD + _digest(body) + _SEPARATOR:
        raise ValueError("its checksum does not match its content")
    try:
        written = msgspec.json.decode(body, type=_Format).format
        if written > FORMAT:
            raise NewerFormat(written)
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no {kind.__name__}: {error}") from error


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGEST].encode()
