"""Schemas of Protobuf for tests, the library's own classes of messages, and records in Confluent's wire format."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from airflow_epochs.kafka.protobuf_files import compiled


@cache
def files(text: str, syntax: str = "proto3", package: str = "shop") -> bytes:
    """The FileDescriptorSet of a file whose first lines say no more than this."""
    return compiled(f'syntax = "{syntax}"; package {package};\n{text}', {})


def message_class(told: bytes, name: str) -> Any:
    """The library's class of a message, out of a pool of its own."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message_factory import GetMessages

    return GetMessages(FileDescriptorSet.FromString(told).file)[name]


def written(number: int, message: Any, indexes: Sequence[int] = (0,)) -> bytes:
    """A record with a message, or with these bytes in its place."""
    body = message if isinstance(message, bytes) else message.SerializeToString()
    told = b"\0" if list(indexes) == [0] else b"".join(map(varint, [len(indexes), *indexes]))
    return b"\0" + number.to_bytes(4, "big") + told + body


def varint(number: int) -> bytes:
    """A number in zigzag code, seven bits a byte, the least significant ones first."""
    left, found = 2 * number if number >= 0 else -2 * number - 1, b""
    while left > 0x7F:
        found, left = found + bytes([left & 0x7F | 0x80]), left >> 7
    return found + bytes([left])
