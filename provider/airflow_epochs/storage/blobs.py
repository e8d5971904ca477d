"""What is under files and under the ledger alike: bytes at paths below a root. Errors are those of the disk or obstore.

Who reads and writes tables wants them told apart and explained (``storage.files``); the ledger wants to know of an
error alone that it says nothing about the effect (``ledger.store``).
"""

from __future__ import annotations

from typing import Protocol


class TooLarge(ValueError):
    """What lies at a path is larger than its reader takes. It was not read."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"it is larger than {bytes_max} bytes, or it is not a regular file")


class Blobs(Protocol):
    """Bytes at ``/``-separated paths. ``storage.local`` has them on a disk, ``storage.objects`` in an object store."""

    def put_new(self, path: str, value: bytes) -> bool:
        """Put-if-absent, durably; False if there is something."""
        ...

    def read(self, path: str, bytes_max: int | None = None) -> bytes | None:
        """The bytes; None if there are none.

        Raises:
            TooLarge: There are more than ``bytes_max``, or what is there has no end.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def below(self, folder: str) -> list[str]:
        """All paths below a folder, recursively; none if there is no such folder."""
        ...

    def remove(self, path: str) -> None:
        """Delete one file. Idempotent."""
        ...
