"""How a record is written: JSON with a checksum as its first member.

Decoding ignores fields it does not know, so that a newer writer of the same format may add some. A record of a
newer *format* is told apart from a damaged one.
"""

from __future__ import annotations

import hashlib
import re
from typing import TypeVar

import msgspec

from airflow_epochs.model import FORMAT
from airflow_epochs.store import VALUE_BYTES_MAX

R = TypeVar("R")

_DIGEST = 16
_HEAD = b'{"sha256":"'
_SEPARATOR = b'",'
DEPTH_MAX = 50
"""How deep objects and lists may lie in one another. No record of ours comes near it, and none may end in recursion."""
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
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
        raise ValueError(f"it is no {kind.__name__}: {error}") from error


def require_readable(value: bytes) -> None:
    """Raise ValueError for a record that would be too large or too deep to be read again."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"it has {len(value)} bytes, more than {VALUE_BYTES_MAX}")
    _require_shallow(value)


def _require_shallow(body: bytes) -> None:
    depth = 0
    for bracket in _BRACKET.finditer(_TEXT.sub(b"", body)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEPTH_MAX:
            raise ValueError(f"its values lie more than {DEPTH_MAX} deep in one another")


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGEST].encode()
