"""How much a batch may grow if the brokers compress it again, with the topic's ``compression.type``.

Data that cannot be compressed is kept as it is, in blocks, each with a header.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_GROWTH: Mapping[str, Callable[[int], int]] = {
    # zlib's deflateBound, for its default memory level, with gzip's head and trailer (RFC 1952)
    "gzip": lambda size: (size >> 12) + (size >> 14) + (size >> 25) + 25,
    # Snappy's format_description.txt: a literal of 61 bytes takes 2 more, and the shortest copy behind it, of 4 bytes,
    # takes 3. Then the last literal and the length of each block of 32 KiB, and snappy-java's heads.
    "snappy": lambda size: size // 63 + 64,
    # LZ4 Frame Format: 4 bytes for each block of Kafka's 64 KiB, and for the end; a head of 7
    "lz4": lambda size: (size >> 14) + 15,
    # RFC 8878: 3 bytes for each block of 128 KiB; a head of at most 18, and a checksum
    "zstd": lambda size: 3 * (size >> 17) + 25,
}


def compresses(kind: str) -> bool:
    """Whether the brokers compress what they get, by the topic's ``compression.type``."""
    return kind in _GROWTH


def growth(kind: str, size: int) -> int:
    """The most bytes by which a batch of ``size`` bytes, or of fewer, becomes larger."""
    return _GROWTH[kind](size) if compresses(kind) else 0
