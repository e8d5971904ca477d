"""How a record is written: JSON with a checksum as its first member, and its signature, if it has one, as the second.

Decoding ignores fields it does not know, so that a newer writer of the same format may add some. A record of a
newer *format* is told apart from a damaged one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from airflow_epochs.ledger.store import VALUE_BYTES_MAX
from airflow_epochs.model import FORMAT

R = TypeVar("R")

_DIGEST = 16
_HEAD = b'{"sha256":"'
_SEPARATOR = b'",'
DEPTH_MAX = 50
"""How deep objects and lists may lie in one another. No record of ours comes near it, and none may end in recursion."""
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_HEAD_END = len(_HEAD) + _DIGEST + len(_SEPARATOR)
_SIGNATURE = 64
_SIGNED = b'{"hmac":"'
_SIGNED_END = len(_SIGNED) + _SIGNATURE + len(_SEPARATOR)


class NewerFormat(ValueError):
    """The record was written by a newer version of this package."""

    def __init__(self, format: int) -> None:
        self.format = format
        super().__init__(f"format {format}")


class _Format(msgspec.Struct):
    format: int


def encode(record: object, sign: Callable[[bytes], str | None] = lambda body: None) -> bytes:
    """JSON of a record, with 64 bits of the SHA-256 of the rest in front: a flipped bit must not become a decision.

    Args:
        record: A record.
        sign: Given the record's JSON, its signature; None if it gets none.
    """
    body = msgspec.json.encode(record)
    if signature := sign(body):
        body = _SIGNED + signature.encode() + _SEPARATOR + body[1:]
    return _HEAD + _digest(body) + _SEPARATOR + body[1:]


def signature_of(value: bytes) -> tuple[bytes, str | None]:
    """What a record's signature covers, and the signature; None if there is none. Says nothing of the checksum."""
    body = b"{" + value[_HEAD_END:]
    head, signature, end = (
        body[: len(_SIGNED)],
        body[len(_SIGNED) : _SIGNED_END - 2],
        body[_SIGNED_END - 2 : _SIGNED_END],
    )
    if head != _SIGNED or end != _SEPARATOR or not signature.isalnum():
        return body, None
    return b"{" + body[_SIGNED_END:], signature.decode()


def decode(value: bytes, kind: type[R]) -> R:
    """The record in ``value``.

    Raises:
        NewerFormat: ``format`` is higher than this version's.
        ValueError: Truncated, altered, nested too deeply, or not a record of this kind.
    """
    body = b"{" + value[_HEAD_END:]
    if value[:_HEAD_END] != _HEAD + _digest(body) + _SEPARATOR:
        raise ValueError("its checksum does not match its content")
    _require_shallow(body)
    try:
        written = msgspec.json.decode(body, type=_Format).format
        if written > FORMAT:
            raise NewerFormat(written)
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not a valid {kind.__name__}: {error}") from error


def require_readable(value: bytes) -> None:
    """Raise ValueError for a record that would be too large or too deep to be read again."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"it has {len(value)} bytes, and the limit is {VALUE_BYTES_MAX}")
    _require_shallow(value)


def _require_shallow(body: bytes) -> None:
    depth = 0
    for bracket in _BRACKET.finditer(_TEXT.sub(b"", body)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEPTH_MAX:
            raise ValueError(f"its values are nested more than {DEPTH_MAX} levels deep")


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGEST].encode()
