"""How large an epoch of versions may be. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FilesSize:
    """How many files Spark reads, and how large they are. ``bytes``: as they are stored, so compressed."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: FilesSize) -> FilesSize:
        return FilesSize(self.files + other.files, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{self.files} files with {self.bytes} bytes"


@dataclass(frozen=True)
class Bounds:
    """The largest number of files and of bytes that an epoch reads; None: no limit."""

    max_files: int | None = None
    max_bytes: int | None = None

    def exceeded_by(self, size: FilesSize) -> bool:
        """Whether ``size`` is too much for an epoch."""
        limits = ((self.max_files, size.files), (self.max_bytes, size.bytes))
        return any(limit is not None and found > limit for limit, found in limits)

    def fitting(self, sizes: Iterable[FilesSize]) -> int:
        """How many versions of these sizes an epoch reads, from the first on: at least one, however large it is."""
        total, count = FilesSize(), 0
        for count, size in enumerate(sizes, 1):
            total += size
            if self.exceeded_by(total):
                return max(1, count - 1)
        return count

    def __str__(self) -> str:
        named = {"max_files": self.max_files, "max_bytes": self.max_bytes}
        return " and ".join(f"{name}={value}" for name, value in named.items() if value is not None)


NO_BOUNDS = Bounds()
