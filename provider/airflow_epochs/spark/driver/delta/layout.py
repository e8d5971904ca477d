"""The size and codec of a table's files: as the table's owner has set them, else as the sink says.

The owner sets them by Databricks' table properties. Spark with Delta 4.4 ignores these by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from airflow_epochs import secrecy

log = secrecy.logger(__name__)

T = TypeVar("T", int, str)

FILE_SIZE = "delta.targetFileSize"
CODEC = "delta.parquet.compression.codec"
CODECS = ("zstd", "snappy", "gzip", "lz4_raw", "uncompressed")
"""The codecs that Spark writes without more libraries, and that deltalake, DuckDB and pyarrow read."""
MB = 2**20
FILE_BYTES_MIN, FILE_BYTES_MAX = MB, 1024 * MB
SHUFFLED = {"zstd": 4.0, "gzip": 4.0}
"""Bytes of shuffled rows that make one byte of a file. Measured with zstd: 5 for narrow orders, 3 for 100 columns."""
SHUFFLED_BY_OTHERS = 1.5
"""Bytes of shuffled rows that make one byte of a file with any other codec. Measured with snappy."""

_SIZE = re.compile(r"(\d+) ?([kmg]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": MB, "g": 2**30}


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """The files of a table.

    Attributes:
        file_bytes: How large a file should become, if there are rows enough.
        codec: One of ``CODECS``.
    """

    file_bytes: int = 128 * MB
    codec: str = "zstd"

    @property
    def shuffled_mib(self) -> int:
        """How many MiB of a shuffle Delta's optimized writes put into one file: they do not know its final size."""
        return max(1, round(self.file_bytes * SHUFFLED.get(self.codec, SHUFFLED_BY_OTHERS) / MB))

    def of(self, properties: Mapping[str, str]) -> FileLayout:
        """The layout that the properties of a table set; for what they do not set, or not usably, this layout."""
        size, codec = properties.get(FILE_SIZE), properties.get(CODEC)
        return FileLayout(
            file_bytes=self.file_bytes if size is None else _usable(FILE_SIZE, size, file_bytes(size), self.file_bytes),
            codec=self.codec if codec is None else _usable(CODEC, codec, known_codec(codec), self.codec),
        )


DEFAULT = FileLayout()


def file_bytes(size: object) -> int | None:
    """The bytes of ``134217728``, ``"134217728"`` or ``"128 MB"``; None if it is no size that a file may have."""
    found = _SIZE.fullmatch(str(size).strip())
    told = int(found[1]) * _UNITS[found[2].lower()] if found else 0
    return told if FILE_BYTES_MIN <= told <= FILE_BYTES_MAX else None


def known_codec(name: str) -> str | None:
    """The codec of ``CODECS`` with this name; None if it is not among them."""
    codec = {"none": "uncompressed"}.get(name.lower(), name.lower())
    return codec if codec in CODECS else None


def _usable(name: str, value: str, told: T | None, instead: T) -> T:
    if told is None:
        log.warning(
            "The table's property %s is %r, which cannot be used here. The value %r is used.", name, value, instead
        )
    return instead if told is None else told
