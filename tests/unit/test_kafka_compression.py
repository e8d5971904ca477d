"""Whether a batch that the brokers compress anew stays within the bound that the vote counts with."""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

from airflow_epochs.sinks.kafka.compression import compresses, growth

SNAPPY_BLOCK, SNAPPY_HEADS, LENGTH = 32 << 10, 16, 4


def _gzip(data: bytes) -> int:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return len(packer.compress(data)) + len(packer.flush())


def _snappy(data: bytes) -> int:
    """As snappy-java's stream: blocks with a length before each."""
    blocks = (data[start : start + SNAPPY_BLOCK] for start in range(0, len(data), SNAPPY_BLOCK))
    return SNAPPY_HEADS + sum(LENGTH + len(pa.compress(block, "snappy", asbytes=True)) for block in blocks)


def _of_arrow(codec: str) -> Callable[[bytes], int]:
    return lambda data: len(pa.compress(data, codec, asbytes=True))


CODECS: Mapping[str, Callable[[bytes], int]] = {
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _of_arrow("lz4"),
    "zstd": _of_arrow("zstd"),
}


def _nothing_repeats(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _as_text(size: int) -> bytes:
    return base64.b64encode(_nothing_repeats(size))[:size]


def _short_repeats(size: int) -> bytes:
    """Runs of 61 new bytes before four known ones: the case that Snappy's bound assumes."""
    chance = random.Random(size)
    return b"".join(chance.randbytes(61) + b"\0\1\2\3" for _ in range(size // 65 + 1))[:size]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("made", [_nothing_repeats, _as_text, _short_repeats])
@pytest.mark.parametrize("size", [100, 200_000, 1_048_588, 10_000_000])
def test_what_cannot_be_compressed_grows_by_no_more_than_the_bound(
    codec: str, made: Callable[[int], bytes], size: int
) -> None:
    assert CODECS[codec](made(size)) <= size + growth(codec, size)


def test_brokers_that_keep_what_they_get_or_unpack_it_let_nothing_grow() -> None:
    assert not any(compresses(kind) or growth(kind, 1 << 20) for kind in ("producer", "uncompressed"))
