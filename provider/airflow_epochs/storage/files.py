"""Files under a root, on a local disk or in an object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import urlsplit

from airflow_epochs.names import normalised
from airflow_epochs.storage.local import LocalFiles
from airflow_epochs.storage.objects import ObjectFiles, object_store

_LOCAL = ("", "file")


class Files(Protocol):
    """Files under a root; paths are relative to it, with ``/``.

    Reading methods raise NotApplied if the store cannot be reached, Refused if it says no.
    """

    def sizes(self, folder: str) -> dict[str, int]:
        """Every file below ``folder``, recursively, with its size; empty if there is no such folder."""
        ...

    def names(self, folder: str) -> set[str]:
        """Names of files and folders directly in ``folder``."""
        ...

    def read(self, path: str) -> bytes | None:
        """The content, or None if there is no such file."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A file to read and seek in, without reading all of it."""
        ...

    def missing(self, paths: Iterable[str]) -> set[str]:
        """Those of ``paths`` at which there is no file."""
        ...

    def tails(self, sizes: Mapping[str, int], length: int) -> Iterator[tuple[str, bytes]]:
        """The last ``length`` bytes of every file; the sizes are known."""
        ...

    def write_new(self, path: str, value: bytes) -> bool:
        """Put-if-absent, durably. False: somebody else's file is there and was left alone.

        Raises:
            OutcomeUnknown: It may be there. Read it back.
        """
        ...

    def upload(self, path: str, source: Path) -> None:
        """Put a file of the local disk at a path that nobody else uses, durably and without reading all of it at once.

        Raises:
            OutcomeUnknown: It may be there, whole.
        """
        ...

    def renew(self, paths: Iterable[str]) -> None:
        """Make files as young as if they were written now; those that are gone are left out."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it. Idempotent."""
        ...

    def sync(self, paths: Iterable[str]) -> None:
        """Make files and the names that lead to them survive a power cut; those that are gone need nothing.

        Nothing to do on object stores.
        """
        ...


def open_files(url: str, options: Mapping[str, str] | None = None) -> Files:
    """Files under ``url``: an absolute local path, ``file://``, ``s3://``, ``gs://``, ``az://`` or ``abfss://``."""
    url = normalised(url)
    if is_local(url):
        return LocalFiles(Path(url))
    return ObjectFiles(url, object_store(url, options or {}))


def is_local(url: str) -> bool:
    return urlsplit(url).scheme in _LOCAL
