"""Records as bytes: JSON whose first member is a checksum and whose second is the signature, if there is one.

A record has transaction ids, and JSON their text. Whatever else makes JSON of records (XCom, commands) does it by this.

Decoding ignores unknown fields, so a newer version may add fields to the same format. A record of a newer *format*
raises an error of its own, because the remedy is another one than for a damaged record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from airflow_epochs.ledger.store import VALUE_BYTES_MAX
from airflow_epochs.model import FORMAT, JsonDict, TransactionId, TryRecord

R = TypeVar("R")

_DIGEST = 16
_HEAD = b'{"sha256":"'
_SEPARATOR = b'",'
DEPTH_MAX = 50
"""How deep objects and lists may be nested. Our records are far below it; a forged one must not exhaust the stack."""
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_HEAD_END = len(_HEAD) + _DIGEST + len(_SEPARATOR)
_SIGNATURE = 64
_SIGNED = b'{"hmac":"'
_SIGNED_END = len(_SIGNED) + _SIGNATURE + len(_SEPARATOR)


_KEYS: Mapping[type, Mapping[str, str]] = {TryRecord: {"try_id": "nonce"}}
"""Record -> field -> its key in JSON, where that is another one: version 0.1 writes and reads these keys."""


class NewerFormat(ValueError):
    """The record was written by a newer version of this package."""

    def __init__(self, format: int) -> None:
        self.format = format
        super().__init__(f"format {format}")


class _Format(msgspec.Struct):
    format: int


def encode(record: object, sign: Callable[[bytes], str | None] = lambda body: None) -> bytes:
    """A record as JSON, behind 64 bits of the SHA-256 of that JSON: a flipped bit must not become a decision.

    Args:
        record: A record.
        sign: Returns the signature of the record's JSON: 64 hexadecimal digits, or None for an unsigned record.
    """
    body = to_json(_with_keys(record))
    if signature := sign(body):
        body = _SIGNED + signature.encode() + _SEPARATOR + body[1:]
    return _HEAD + _digest(body) + _SEPARATOR + body[1:]


def signature_of(value: bytes) -> tuple[bytes, str | None]:
    """The bytes that a record's signature covers, and the signature, or None. Does not look at the checksum."""
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
        ValueError: The record is truncated, altered, nested too deeply, or not of this kind.
    """
    body = b"{" + value[_HEAD_END:]
    if value[:_HEAD_END] != _HEAD + _digest(body) + _SEPARATOR:
        raise ValueError("its checksum does not match its content")
    _require_shallow(body)
    try:
        written = msgspec.json.decode(body, type=_Format).format
        if written > FORMAT:
            raise NewerFormat(written)
        return _with_fields(body, kind) if kind in _KEYS else msgspec.json.decode(body, type=kind, dec_hook=_parsed)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not a valid {kind.__name__}: {error}") from error


def to_json(record: object) -> bytes:
    """A record, or a value with records in it, as JSON without a checksum."""
    return msgspec.json.encode(record, enc_hook=_as_text)


def to_plain(record: object) -> Any:
    """As ``to_json``, as dicts, lists, tuples, texts and numbers."""
    return msgspec.to_builtins(record, enc_hook=_as_text)


def from_plain(value: object, kind: type[R], *, strict: bool = True) -> R:
    """The inverse of ``to_plain``. Raises msgspec.ValidationError. ``strict``: as ``msgspec.convert``."""
    return msgspec.convert(value, kind, strict=strict, dec_hook=_parsed)


def _as_text(value: object) -> str:
    """The JSON of a value that msgspec does not know. Records have one kind of such values."""
    if isinstance(value, TransactionId):
        return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _parsed(kind: type, told: object) -> TransactionId:
    """The inverse of ``_as_text``. msgspec adds to the error where the value stands."""
    if not isinstance(told, str):
        raise ValueError(f"Expected `str`, got `{type(told).__name__}`")
    return TransactionId.parse(told)


def _with_keys(record: object) -> object:
    keys = _KEYS.get(type(record))
    if keys is None:
        return record
    plain: JsonDict = to_plain(record)
    return {keys.get(field, field): value for field, value in plain.items()}


def _with_fields(body: bytes, kind: type[R]) -> R:
    """The inverse of ``_with_keys``. A member with a field's name is unknown, as in every version."""
    fields = {key: field for field, key in _KEYS[kind].items()}
    plain = msgspec.json.decode(body, type=JsonDict)
    return from_plain({fields.get(key, key): plain[key] for key in plain.keys() - fields.values()}, kind)


def require_readable(value: bytes) -> None:
    """Raise ValueError if ``value`` is too large or nested too deeply for ``decode``."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"it has {len(value)} bytes, and the limit is {VALUE_BYTES_MAX}")
    _require_shallow(value)


def _require_shallow(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return
    depth = 0
    for bracket in _BRACKET.finditer(_TEXT.sub(b"", body)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEPTH_MAX:
            raise ValueError(f"its values are nested more than {DEPTH_MAX} levels deep")


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGEST].encode()
