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
    """Files under a root. Paths are relative to it and ``/``-separated.

    Every method raises Refused if the credentials lack a permission. Reading methods raise NotApplied if the store does
    not answer.
    """

    def sizes(self, folder: str) -> dict[str, int]:
        """Path -> bytes, for every file below ``folder``, recursively; empty if there is no such folder."""
        ...

    def names(self, folder: str) -> set[str]:
        """The names of files and folders directly in ``folder``; empty if there is no such folder."""
        ...

    def read(self, path: str) -> bytes | None:
        """The content; None if there is no such file."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file to read and seek in, without reading all of it."""
        ...

    def missing(self, paths: Iterable[str]) -> set[str]:
        """The ``paths`` at which there is no file."""
        ...

    def tails(self, sizes: Mapping[str, int], length: int) -> Iterator[tuple[str, bytes]]:
        """Path and last ``length`` bytes, of every file in ``sizes`` (path -> bytes). A shorter file is read whole."""
        ...

    def write_new(self, path: str, value: bytes) -> bool:
        """Put-if-absent, durably. False: the path is taken, and its file was not changed.

        Raises:
            OutcomeUnknown: The file may be there. Read it back.
        """
        ...

    def probe(self, folder: str) -> None:
        """Find out whether files can be written below a folder, which need not exist. Leaves nothing behind.

        Raises:
            Refused: Something else than a folder is in the way, or no folder can be created.
            NotApplied: The disk does not take a file.
            OutcomeUnknown: The object store does not confirm the file.
        """
        ...

    def upload(self, path: str, source: Path) -> None:
        """Copy a file of the local disk to a path that nobody else uses, durably, without reading all of it at once.

        Raises:
            OutcomeUnknown: The whole file may be there.
        """
        ...

    def renew(self, paths: Iterable[str]) -> None:
        """Set the modification time of files to now, so that a VACUUM spares them. Skips missing files."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all its files. Idempotent."""
        ...

    def sync(self, paths: Iterable[str]) -> None:
        """Make files, and their names in all folders above, survive a power cut. Skips missing files.

        Does nothing in an object store, which acknowledges only durable writes.
        """
        ...


def open_files(url: str, options: Mapping[str, str] | None = None, conn_id: str | None = None) -> Files:
    """Files under ``url``: an absolute local path, ``file://``, ``s3://``, ``gs://``, ``az://`` or ``abfss://``.

    ``conn_id``: the connection that ``options`` come from, for errors.
    """
    url = normalised(url)
    if is_local(url):
        return LocalFiles(Path(url))
    return ObjectFiles(url, object_store(url, options or {}), conn_id)


def is_local(url: str) -> bool:
    """Whether ``url`` is on a local disk: a path or ``file://``."""
    return urlsplit(url).scheme in _LOCAL
