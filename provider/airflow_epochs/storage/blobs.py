"""Bytes at paths below a root: what tables' files and the ledger have in common.

Errors of the disk or of obstore are raised as they are. ``storage.files`` turns them into errors with a remedy.
``ledger.store`` passes them on, because to the ledger every error means the same: the effect is unknown.
"""

from __future__ import annotations

from typing import Protocol

PROBE = ".epochs-probe-"
"""How the name of a probe begins: hidden from readers of tables, and the name of no pipeline."""


class TooLarge(ValueError):
    """The file is larger than its reader accepts, or is no regular file. It was not read."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"it is larger than {bytes_max} bytes, or it is not a regular file")


class Blobs(Protocol):
    """Bytes at ``/``-separated paths: on a disk (``storage.local``) or in an object store (``storage.objects``)."""

    def put_new(self, path: str, value: bytes) -> bool:
        """Put-if-absent, durably; False if the path is taken. An exception says nothing about the effect."""
        ...

    def read(self, path: str, bytes_max: int | None = None) -> bytes | None:
        """The bytes; None if there is no file.

        Raises:
            TooLarge: There are more than ``bytes_max`` bytes, or the file is no regular one, such as a pipe.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file. An error is raised, never taken for a no."""
        ...

    def below(self, folder: str) -> list[str]:
        """All paths below a folder, recursively, in no order; empty if there is no such folder."""
        ...

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in a folder (empty: the root), in no order. Does not look into them."""
        ...

    def remove(self, path: str) -> None:
        """Delete one file. Idempotent."""
        ...
