"""Byte stores with put-if-absent: one winner per key, for ever.

Three of them: our own writer for local disks (durable: obstore never calls fsync), obstore for S3, GCS and
Azure (``If-None-Match: *`` or the like), and obstore's memory store for tests.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from airflow_epochs.errors import Refused
from airflow_epochs.names import normalised
from airflow_epochs.secrecy import shown
from airflow_epochs.storage import fsync

if TYPE_CHECKING:
    from obstore.store import ObjectStore


VALUE_BYTES_MAX = 8 * 1024 * 1024
"""No value is larger, so that none fills the memory of whoever reads it."""


class TooLarge(ValueError):
    """What lies at a key is larger than a value may be. It was not read."""

    def __init__(self) -> None:
        super().__init__(f"it is larger than {VALUE_BYTES_MAX} bytes, or no file")


class Store(Protocol):
    """Immutable values under ``/``-separated keys."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Store ``value`` durably unless the key exists; True if this call stored it.

        An exception says nothing about the effect: read the key back.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The value, durable by the time it is returned; None if absent.

        Raises:
            TooLarge: It has more than ``VALUE_BYTES_MAX``.
        """
        ...

    def exists(self, key: str) -> bool: ...

    def list(self, prefix: str) -> list[str]:
        """All keys under the folder ``prefix`` (no trailing slash), recursively, sorted.

        With every key whose put has ended before the call.
        """
        ...

    def delete(self, key: str) -> None:
        """Idempotent."""
        ...


def open_store(url: str, options: Mapping[str, str] | None = None) -> Store:
    """A store for a path, a ``file://``, ``s3://``, ``gs://``, ``az://`` … or ``memory://`` URL.

    Args:
        url: The root; keys are relative to it.
        options: ``object_store`` options (credentials, endpoint); unused for local disks.

    Raises:
        Refused: The root has a ``#`` or ``?``, or is not absolute, or obstore does not know its scheme.
    """
    if url != (meant := url.partition("#")[0].partition("?")[0]):
        raise Refused(
            f"The ledger root {shown(url)!r} has a '#' or a '?'. What follows it names no place: version 0.1 put the "
            f"ledger, and any other that differs only there, into {shown(meant)!r}.",
            remedy=f"set `ledger_root` of the connection of type epochs to {shown(meant)!r} to go on with the ledger "
            "that is there, or to another place without these characters for a new one.",
        )
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "memory":
        from obstore.store import MemoryStore

        return ObstoreStore(MemoryStore())
    from airflow_epochs.storage.objects import object_store

    return ObstoreStore(object_store(url, options or {}), shown(normalised(url)))


class LocalStore:
    """Files on a local disk, durable by the time a call returns."""

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise Refused(
                f"The ledger root must be an absolute path or a URL, not {shown(str(root))!r}.",
                remedy="correct the field `ledger_root` of the connection of type epochs.",
            )
        self._root = root

    @property
    def root(self) -> str:
        return str(self._root)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        return fsync.write_new(self._root / key, value)

    def get(self, key: str) -> bytes | None:
        path = self._root / key
        try:
            value = _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        # The writer may have died between link and fsync: what we act on must survive a power cut.
        fsync.fsync(path.parent)
        return value

    def exists(self, key: str) -> bool:
        try:
            os.stat(self._root / key)  # Path.exists takes some errors of a disk for "no"
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        return sorted(
            str(path.relative_to(self._root))
            for path in fsync.files_below(self._root / prefix)
            if not path.name.startswith(".")
        )

    def delete(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    """A file of bounded size. What is none, such as a pipe, would be waited for, or never end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > VALUE_BYTES_MAX:
            raise TooLarge
        return file.read()


class ObstoreStore:
    """Any obstore store whose put honours ``mode="create"``."""

    def __init__(self, store: ObjectStore, root: str = "") -> None:
        self._store = store
        self.root = root

    def put_if_absent(self, key: str, value: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._store, key, value, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def get(self, key: str) -> bytes | None:
        import obstore

        try:
            found = obstore.get(self._store, key)
        except FileNotFoundError:
            return None
        if found.meta["size"] > VALUE_BYTES_MAX:
            raise TooLarge
        return bytes(found.bytes())

    def exists(self, key: str) -> bool:
        import obstore

        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        import obstore

        return sorted(str(meta["path"]) for batch in obstore.list(self._store, prefix) for meta in batch)

    def delete(self, key: str) -> None:
        import obstore

        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
